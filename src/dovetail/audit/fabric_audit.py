"""What the audit must know of a fabric to tell what became of its messages: one value for each, in `audit.fabrics`.

All transforms are pure functions of DataFrames. Those of a fabric get rows of that fabric only; the parts of all
fabrics that a lake has are put together by name.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by

from dovetail.model.fabric import Fabric
from dovetail.model.hop import Relation, Stage


@dataclass(frozen=True, slots=True)
class Moment:
    """The time of which the tables speak, and how long something may be under way before it counts as lost."""

    as_of: dt.datetime
    patience_us: int = 30_000_000


@dataclass(frozen=True, slots=True)
class Rows:
    """What silver and the holdings have of one fabric."""

    hops: DataFrame
    messages: DataFrame
    sightings: DataFrame
    answers: DataFrame
    """Who answered which message: the table `ANSWERS` of `transforms.answers`."""
    servers: DataFrame
    """With how far the journal of each reaches in the lake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRule:
    """Of the messages with the same columns `by` there may be only one; more contradict each other.

    `rows` gives the candidates with `message` and `seen`, from messages that some server took (with `seen`) and links.
    """

    kind: str
    rows: Callable[[DataFrame, DataFrame], DataFrame]
    by: tuple[str, ...]
    author: str
    subject: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricAudit:
    """How to audit one fabric."""

    fabric: Fabric
    deliveries: Callable[[Rows, Moment], DataFrame]
    """One row per message and recipient, with the columns of `transforms.deliveries.PART`."""
    chains: Callable[[DataFrame, DataFrame, DataFrame], DataFrame] | None = None
    """From hops, messages and links; the columns of the table."""
    answers: Relation | None = None
    """How a message names the one that it answers; an answer of a recipient is evidence that he has a message."""
    forks: tuple[ForkRule, ...] = ()
    """Contradictions that are told from what is linked with a message, or has the sender of one of `unique_types`."""
    unique_types: tuple[str, ...] = ()
    """Types of which each sender may make one message."""
    circles: Callable[[DataFrame, DataFrame], DataFrame] | None = None
    """Circular links, from holdings and links, where times do not tell them; the columns of forks."""
    shared_key: str | None = None
    """The kind of fork that two messages with one key are; None where a key is a whole address."""
    against_time: Callable[[], Column] | None = None
    """When a link to `parent_created` from `created` is against time; None where links do not form a graph that grows
    and that all servers keep."""
    forwards: bool = False
    """Its servers hand messages to each other, so that the offsets of their clocks can be estimated."""
    lifetime_us: int | None = None
    """Messages that name no end of their lifetime have an outcome after this time."""
    overdue: Stage | None = None
    """A message with such a hop changes its outcome when patience is over."""
    community: Callable[[Column], Column] | None = None
    """`Fabric.community` of a column of servers; None where no servers are to hold the same messages."""
    few_holders: Callable[[DataFrame, DataFrame, Sequence[str]], DataFrame] | None = None
    """A faster way to gather the holdings of hops and messages at a few servers."""

    @property
    def is_chained(self) -> bool:
        """What is said of a message depends on those that it is linked with."""
        return self.chains is not None or self.circles is not None or bool(self.forks)

    @property
    def name(self) -> str:
        """The name of the fabric."""
        return self.fabric.name


def communal(audits: Iterable[FabricAudit]) -> list[FabricAudit]:
    """Those whose servers are to hold the same messages."""
    return [audit for audit in audits if audit.community is not None]


def is_of(audits: Iterable[FabricAudit], column: str = "fabric") -> Column:
    """Whether a row is of one of these fabrics."""
    names = [audit.name for audit in audits]
    return F.col(column).isin(*names) if names else F.lit(False)


def by_fabric(audits: Iterable[FabricAudit], choose: Callable[[FabricAudit], Column | Any], default: Column) -> Column:
    """For each row what `choose` gives for its fabric, else the default."""
    chosen = default
    for audit in audits:
        chosen = F.when(F.col("fabric") == audit.name, choose(audit)).otherwise(chosen)
    return chosen


def union(parts: Iterable[DataFrame]) -> DataFrame:
    """The rows of all parts; there must be one."""
    return reduce(DataFrame.unionByName, parts)
