"""A peer's metrics for Prometheus, read from the core on request, so that counting costs nothing."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dovetail.runtime.journal_metrics import JournalCollector
from dovetail.runtime.metrics import new_registry
from dovetail.runtime.swarm_node import SwarmNode


class PeerCollector(Collector):
    """Collects the core's counters."""

    def __init__(self, node: SwarmNode) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families."""
        status = self._node.status()
        for name, help_text, value in (
            ("messages", "Unexpired messages that others may pull.", status.messages),
            ("held_bytes", "Memory counted for held messages.", status.held_bytes),
            ("tips", "Messages that no unexpired message refers to.", status.tips),
            ("missing", "Messages that are known but missing.", status.missing),
            ("unconfirmed", "Own messages that no other peer is known to hold.", status.unconfirmed),
            ("contacts", "Peers that have answered a ticket.", status.contacts),
            ("strangers", "Endpoints that have not answered a ticket.", status.strangers),
        ):
            yield GaugeMetricFamily(f"dovetail_swarm_{name}", help_text, value=value)
        links = GaugeMetricFamily("dovetail_swarm_links", "Links by direction.", labels=["direction"])
        links.add_metric(["forward"], len(status.forward))
        links.add_metric(["backward"], len(status.backward))
        yield links
        for name, help_text, value in (
            ("accepted", "Messages accepted, including own ones.", status.accepted),
            ("duplicates", "Duplicate messages received.", status.duplicates),
            ("crowded_out", "Missing messages not pulled because too many were wanted.", status.crowded_out),
            ("late_answers", "Answers that arrived late or more than once.", status.late_answers),
            ("refused_journaled", "Refusals recorded in the journal.", status.refused_journaled),
            ("received_bytes", "Bytes received.", status.received_bytes),
            ("received_datagrams", "Datagrams received.", status.received_datagrams),
            ("sent_datagrams", "Datagrams sent.", status.sent_datagrams),
        ):
            yield CounterMetricFamily(f"dovetail_swarm_{name}", help_text, value=value)
        sent = CounterMetricFamily("dovetail_swarm_sent_bytes", "Bytes sent by purpose.", labels=["purpose"])
        for purpose, count in status.sent_bytes.items():
            sent.add_metric([purpose], count)
        yield sent
        refused = CounterMetricFamily("dovetail_swarm_refused", "Datagrams refused by reason.", labels=["reason"])
        for reason, count in status.refused.items():
            refused.add_metric([reason], count)
        yield refused


def peer_registry(node: SwarmNode) -> CollectorRegistry:
    """A registry for one peer."""
    return new_registry(PeerCollector(node), JournalCollector(node.journal))
