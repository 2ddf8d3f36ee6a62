"""The broker's metrics for Prometheus, read from the core on request, so that counting costs nothing."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dovetail.pcp.broker import Broker
from dovetail.runtime.driver import TurnStats
from dovetail.runtime.journal_metrics import histogram
from dovetail.runtime.metrics import new_registry

MAX_NAMED_CLIENTS = 100


class BrokerCollector(Collector):
    """Collects the core's counters."""

    def __init__(self, broker: Broker, turns: TurnStats) -> None:
        self._broker = broker
        self._turns = turns

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families."""
        broker = self._broker
        yield GaugeMetricFamily("dovetail_pcp_connections", "Open connections.", value=broker.connection_count)
        clients = GaugeMetricFamily("dovetail_pcp_clients", "Associated clients by type.", labels=["type"])
        for client_type, members in sorted(broker.registry.by_type.items())[:MAX_NAMED_CLIENTS]:
            clients.add_metric([client_type], len(members))
        yield clients
        messages = CounterMetricFamily(
            "dovetail_pcp_messages", "Hops, by stage and reason.", labels=["stage", "reason"]
        )
        for (stage, reason), count in sorted(broker.counts().items()):
            messages.add_metric([stage, reason], count)
        yield messages
        sampled = CounterMetricFamily(
            "dovetail_pcp_sampled_refusals",
            "Refusals above the rate limit, of which the journal records only the number, by reason.",
            labels=["reason"],
        )
        for reason, count in sorted(broker.sampled_refusals.items()):
            sampled.add_metric([reason], count)
        yield sampled
        yield GaugeMetricFamily("dovetail_pcp_queue_bytes", "Bytes of all queued messages.", value=broker.queued_bytes)
        backlog = GaugeMetricFamily(
            "dovetail_pcp_client_queue_bytes",
            "Bytes queued for slow clients, longest queues first.",
            labels=["client"],
        )
        backlogs = sorted(broker.backlogs().items(), key=lambda item: (-item[1], item[0]))
        for uri, size in backlogs[:MAX_NAMED_CLIENTS]:
            backlog.add_metric([uri], size)
        yield backlog
        waiting = GaugeMetricFamily(
            "dovetail_pcp_sender_queue_bytes",
            "Bytes of queued messages by sender, a name in certificates, largest first.",
            labels=["client"],
        )
        for uri, _, size in broker.held.largest(MAX_NAMED_CLIENTS):
            waiting.add_metric([uri], size)
        yield waiting
        yield histogram(
            "dovetail_pcp_routing_seconds",
            "Duration of one turn: decode, authorize, route, journal and write a batch of input.",
            self._turns.times,
        )
        yield CounterMetricFamily(
            "dovetail_pcp_journal_delays",
            "Turns that waited for space in the journal's queue.",
            value=self._turns.delayed,
        )


class BrokerMetrics:
    """The registry of one broker: the core's counters, and what only the server sees."""

    def __init__(self, broker: Broker) -> None:
        self.turns = TurnStats()
        self.registry = new_registry(BrokerCollector(broker, self.turns))
        self.refused_upgrades = Counter(
            "dovetail_pcp_refused_upgrades", "Upgrades refused, by HTTP status.", ["status"], registry=self.registry
        )
        self.closes = Counter(
            "dovetail_pcp_closes", "Connections closed by the broker, by code.", ["code"], registry=self.registry
        )
        self.refused_clients = Counter(
            "dovetail_pcp_refused_clients",
            "Clients refused, or refused permission to send, by reason.",
            ["reason"],
            registry=self.registry,
        )
        self.slow_consumers = Counter(
            "dovetail_pcp_slow_consumers",
            "Connections closed because the client did not read, by client.",
            ["client"],
            registry=self.registry,
        )
        self.handshake_seconds = Histogram(
            "dovetail_pcp_handshake_seconds", "Time from the upgrade to the association.", registry=self.registry
        )
        self.rule_changes = Counter(
            "dovetail_pcp_rule_changes", "Rule reloads, by outcome.", ["outcome"], registry=self.registry
        )
        self._named = 0

    def count_slow(self, uri: str) -> None:
        """Count a slow consumer by name, up to a maximum number of names."""
        if self._named < MAX_NAMED_CLIENTS:
            self._named += 1
        else:
            uri = "others"
        self.slow_consumers.labels(uri).inc()
