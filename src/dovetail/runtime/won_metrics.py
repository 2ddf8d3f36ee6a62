"""A node's metrics for Prometheus, read from the core on request, so that counting costs nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dovetail.journal.journal import Journal
from dovetail.runtime.clock import now_us
from dovetail.runtime.driver import Driver
from dovetail.runtime.journal_metrics import JournalCollector
from dovetail.runtime.metrics import new_registry
from dovetail.runtime.pace import OTHERS
from dovetail.won.atom import AtomState
from dovetail.won.chain import ChainState
from dovetail.won.connection import ConnectionState
from dovetail.won.events import Event
from dovetail.won.links import LinkKind
from dovetail.won.node import Node
from dovetail.won.status import QueueStatus

MAX_NAMED_NODES = 100
_State = TypeVar("_State", bound=StrEnum)


class NodeCollector(Collector):
    """Collects the core's counters."""

    def __init__(self, node: Node, driver: Driver[Event]) -> None:
        self._node = node
        self._driver = driver

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families."""
        status = self._node.status(now_us())
        messages = CounterMetricFamily(
            "dovetail_won_messages", "Hops, by stage and reason.", labels=["stage", "reason"]
        )
        for (stage, reason), count in sorted(status.hops.items(), key=lambda item: (item[0][0], item[0][1] or "")):
            messages.add_metric([stage, reason or ""], count)
        yield messages
        yield _by_state("atoms", "Atoms of this node by state.", AtomState, status.atoms)
        yield _by_state("connections", "Connections of its atoms by state.", ConnectionState, status.connections)
        yield _by_state(
            "chains",
            "Messages of its atoms by delivery state.",
            [state for state in ChainState if state is not ChainState.AWAITING_SENDER],
            status.chains,
        )
        yield _by_state("links", "Open WebSockets by kind of remote end.", LinkKind, status.links, label="kind")
        yield from _describe_queues(status.queues)
        keys = GaugeMetricFamily("dovetail_won_keys", "Public keys in memory: own and fetched ones.", labels=["kind"])
        keys.add_metric(["own"], status.keys_pinned)
        keys.add_metric(["fetched"], status.keys_fetched)
        yield keys
        for name, help_text, value in (
            ("links_waiting", "Links whose next frame is waiting for a signer's key.", status.links_waiting),
            ("inbox_bytes", "Bytes of input waiting for the journal.", self._driver.inbox_bytes),
        ):
            yield GaugeMetricFamily(f"dovetail_won_{name}", help_text, value=value)


def _by_state(
    name: str, help_text: str, states: Iterable[_State], counts: Mapping[_State, int], label: str = "state"
) -> Metric:
    family = GaugeMetricFamily(f"dovetail_won_{name}", help_text, labels=[label])
    for state in states:
        family.add_metric([state.value], counts.get(state, 0))
    return family


def _describe_queues(queues: list[QueueStatus]) -> Iterator[Metric]:
    """The longest queues by name, the rest as a sum, so that the output is bounded for any number of nodes."""
    length = GaugeMetricFamily("dovetail_won_queue_messages", "Messages queued for another node.", labels=["node"])
    age = GaugeMetricFamily("dovetail_won_queue_oldest_seconds", "Age of the oldest of them.", labels=["node"])
    reachable = GaugeMetricFamily(
        "dovetail_won_node_linked", "1 while a link to the other node is open.", labels=["node"]
    )
    ranked = sorted(queues, key=lambda queue: (-queue.length, queue.node))
    for queue in ranked[:MAX_NAMED_NODES]:
        length.add_metric([queue.node], queue.length)
        age.add_metric([queue.node], max(0, queue.oldest_ms) / 1000)
        reachable.add_metric([queue.node], int(queue.is_open))
    rest = ranked[MAX_NAMED_NODES:]
    if rest:
        length.add_metric([OTHERS], sum(queue.length for queue in rest))
        age.add_metric([OTHERS], max(0, *(queue.oldest_ms for queue in rest)) / 1000)
    yield length
    yield age
    yield reachable


def node_registry(node: Node, journal: Journal, driver: Driver[Event]) -> CollectorRegistry:
    """A registry for one node."""
    return new_registry(NodeCollector(node, driver), JournalCollector(journal))
