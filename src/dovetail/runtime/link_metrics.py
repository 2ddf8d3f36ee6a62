"""Metrics that only the listening side of a server sees, for Prometheus: handshakes, and incomplete messages."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dovetail.runtime.acceptor import Acceptor
from dovetail.runtime.frames import Memory
from dovetail.runtime.pace import Rates


class LinkCollector(Collector):
    """Reads an acceptor and the memory of its links."""

    def __init__(self, acceptor: Acceptor, memory: Memory, unsent: Memory) -> None:
        self._acceptor = acceptor
        self._memory = memory
        self._unsent = unsent

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families."""
        failures = CounterMetricFamily(
            "dovetail_handshake_failures", "Connections that failed during the handshake, by kind.", labels=["kind"]
        )
        for kind, count in sorted(self._acceptor.failures.items()):
            failures.add_metric([kind], count)
        yield failures
        yield GaugeMetricFamily(
            "dovetail_handshakes", "Connections in their TLS or HTTP handshake.", value=self._acceptor.handshake_count
        )
        yield GaugeMetricFamily(
            "dovetail_unfinished_bytes",
            "Memory of incomplete messages.",
            value=self._memory.used_bytes,
        )
        yield GaugeMetricFamily(
            "dovetail_unsent_bytes",
            "Bytes written to links that the kernel has not accepted yet.",
            value=self._unsent.used_bytes,
        )


class RateCollector(Collector):
    """Counts who was slowed down."""

    def __init__(self, rates: Rates) -> None:
        self._rates = rates

    def collect(self) -> Iterator[Metric]:
        """Yield one family."""
        slowed = CounterMetricFamily(
            "dovetail_pcp_slowed", "Turns after which a client was throttled.", labels=["client"]
        )
        for name, count in sorted(self._rates.slowed.items()):
            slowed.add_metric([name], count)
        yield slowed
