"""When the certificates that a server works with are over, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from cryptography import x509
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class CertificateCollector(Collector):
    """Tells the expiry of files as they were read when the server started: these are what it works with.

    A revocation list is read again while the server runs, so its time is asked for.
    """

    def __init__(self, files: Mapping[str, str | None], revocations: Callable[[], float | None] = lambda: None) -> None:
        self._expiries = {name: _first_expiry(Path(path)) for name, path in files.items() if path is not None}
        self._revocations = revocations

    def collect(self) -> Iterator[Metric]:
        """One family, a sample for each file."""
        family = GaugeMetricFamily(
            "dovetail_certificate_expiry_timestamp_seconds",
            "When the certificate, the authority or the revocation list that is in use is over.",
            labels=["name"],
        )
        revocations = self._revocations()
        extra = {} if revocations is None else {"revocations": revocations}
        for name, expiry in (self._expiries | extra).items():
            family.add_metric([name], expiry)
        yield family


def _first_expiry(path: Path) -> float:
    """When the first certificate of a chain or bundle is over."""
    chain = x509.load_pem_x509_certificates(path.read_bytes())
    return min(certificate.not_valid_after_utc.timestamp() for certificate in chain)
