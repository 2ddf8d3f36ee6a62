"""A peer's numbers for Prometheus, read from the core when they are asked for, so that counting costs nothing."""

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
    """Collects what the core counts."""

    def __init__(self, node: SwarmNode) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        """One family after the other."""
        status = self._node.status()
        for name, help_text, value in (
            ("messages", "Unexpired messages that others may pull.", status.messages),
            ("tips", "Messages that no unexpired message refers to.", status.tips),
            ("missing", "Messages that are wanted and have not come.", status.missing),
            ("unconfirmed", "Own messages that nobody was seen to have.", status.unconfirmed),
            ("contacts", "Peers that have answered a ticket.", status.contacts),
            ("strangers", "Endpoints that have not answered a ticket.", status.strangers),
        ):
            yield GaugeMetricFamily(f"dovetail_swarm_{name}", help_text, value=value)
        links = GaugeMetricFamily("dovetail_swarm_links", "Links by direction.", labels=["direction"])
        links.add_metric(["forward"], len(status.forward))
        links.add_metric(["backward"], len(status.backward))
        yield links
        for name, help_text, value in (
            ("accepted", "Messages that joined the flow, own ones included.", status.accepted),
            ("duplicates", "Messages that came again.", status.duplicates),
            ("late_answers", "Answers to own questions that came late or again.", status.late_answers),
            ("refused_journaled", "Refusals that went into the journal.", status.refused_journaled),
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
    """A registry with one peer in it."""
    return new_registry(PeerCollector(node), JournalCollector(node.journal))
