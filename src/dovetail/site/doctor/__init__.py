"""Checks of a machine and of a configuration, each with advice if it fails."""

from dovetail.site.doctor.finding import Finding, Status
from dovetail.site.doctor.machine import check_machine, start_spark
from dovetail.site.doctor.site import check_ports, check_site

__all__ = ["Finding", "Status", "check_machine", "check_ports", "check_site", "start_spark"]
