"""The audits of all fabrics. Nothing else in the audit names a fabric."""

from __future__ import annotations

from collections.abc import Collection

from dovetail.audit.fabric_audit import FabricAudit
from dovetail.audit.fabrics import pcp, swarm, won

AUDITS: list[FabricAudit] = [
    pcp.AUDIT,
    won.AUDIT,
    swarm.AUDIT,
]


def audits_of(names: Collection[str]) -> list[FabricAudit]:
    """The audits of these fabrics."""
    return [audit for audit in AUDITS if audit.name in names]
