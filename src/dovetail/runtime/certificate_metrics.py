"""When the certificates that a server works with are over, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class CertificateCollector(Collector):
    """Asks for the expiry of each file that is in use, in seconds since 1970; files are read again when they change."""

    def __init__(self, expiries: Callable[[], Mapping[str, float | None]]) -> None:
        self._expiries = expiries

    def collect(self) -> Iterator[Metric]:
        """One family, a sample for each file."""
        family = GaugeMetricFamily(
            "dovetail_certificate_expiry_timestamp_seconds",
            "When the certificate, the authority or the revocation list that is in use is over.",
            labels=["name"],
        )
        for name, expiry in self._expiries().items():
            if expiry is not None:
                family.add_metric([name], expiry)
        yield family
