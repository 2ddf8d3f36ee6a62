"""When the certificates used by a server expire, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class CertificateCollector(Collector):
    """Reads the expiry of each file in use, in seconds since 1970; files are read again when they change."""

    def __init__(self, expiries: Callable[[], Mapping[str, float | None]]) -> None:
        self._expiries = expiries

    def collect(self) -> Iterator[Metric]:
        """One family, with one sample per file."""
        family = GaugeMetricFamily(
            "dovetail_certificate_expiry_timestamp_seconds",
            "When the certificate, CA or revocation list in use expires.",
            labels=["name"],
        )
        for name, expiry in self._expiries().items():
            if expiry is not None:
                family.add_metric([name], expiry)
        yield family
