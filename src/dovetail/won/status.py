"""A node in numbers, for metrics and tests; computed on request, so it costs nothing otherwise."""

from __future__ import annotations

import msgspec

from dovetail.model.hop import Reason, Stage
from dovetail.won.atom import AtomState
from dovetail.won.chain import ChainState
from dovetail.won.connection import ConnectionState
from dovetail.won.links import LinkKind


class QueueStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What is queued for one other node; `oldest_ms` is the age of the oldest queued message."""

    node: str
    length: int
    oldest_ms: int
    is_open: bool


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one node at one moment: hops since start, and current totals of everything else."""

    hops: dict[tuple[Stage, Reason | None], int]
    atoms: dict[AtomState, int]
    connections: dict[ConnectionState, int]
    chains: dict[ChainState, int]
    links: dict[LinkKind, int]
    queues: list[QueueStatus]
    keys_pinned: int
    keys_fetched: int
    links_waiting: int
    """Links whose next frame waits for a signer's key."""
