"""What the audit needs to know about a fabric to determine its outcomes: one value per fabric, in `audit.fabrics`.

All transforms are pure functions of DataFrames. Those of a fabric get only rows of that fabric; the parts of all
fabrics in a lake are unioned by name.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the conventional name

from dovetail.audit.decode import DECODED_SCHEMA, Agreements, decode_by
from dovetail.model.fabric import Fabric
from dovetail.model.hop import Relation, Stage


@dataclass(frozen=True, slots=True)
class Moment:
    """The time as of which the tables are computed, and how long something may be in flight before it is lost."""

    as_of: dt.datetime
    loss_timeout_us: int = 30_000_000


@dataclass(frozen=True, slots=True)
class Rows:
    """The silver rows and holdings of one fabric."""

    hops: DataFrame
    messages: DataFrame
    holdings: DataFrame
    answers: DataFrame
    """Who answered which message: the table `ANSWERS` of `transforms.answers`."""
    servers: DataFrame
    """The servers, each with what is known of its journal: the table `servers`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRule:
    """There may be only one message with the same columns `by`; more contradict each other.

    `rows` gives the candidates with `message` and `seen`, from messages that some server took (with `seen`) and links.
    """

    kind: str
    rows: Callable[[DataFrame, DataFrame], DataFrame]
    by: tuple[str, ...]
    author: str
    subject: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeColumns:
    """How to decode with native columns what `Fabric.read` decodes, except the details of refusals."""

    head_bytes: int
    """Number of leading bytes of `raw` that are read, apart from what `has_work` needs: no more are shuffled."""
    has_work: Callable[[Column, Agreements], Column]
    """`MessageInfo.work_valid` of the column `raw` and a column of communities."""
    fields: Callable[[DataFrame, Agreements], DataFrame]
    """All columns of `DECODED`, from rows with `DECODER_INPUT`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricAudit:
    """How to audit one fabric."""

    fabric: Fabric
    deliveries: Callable[[Rows, Moment], DataFrame]
    """One row per message and recipient, with the columns of `transforms.deliveries.PART`."""
    native: NativeColumns | None = None
    """A faster decoder than `Fabric.read`, which runs row by row in Python."""
    fingerprint: Callable[[Column], Column] | None = None
    """`Signed.fingerprint` of a column of public keys; None if messages are not signed."""
    chains: Callable[[DataFrame, DataFrame, DataFrame], DataFrame] | None = None
    """Chains from hops, messages and links; the columns of the table."""
    answers: Relation | None = None
    """How a message names the one it answers; a recipient's answer is evidence that it has the message."""
    forks: tuple[ForkRule, ...] = ()
    """Contradictions found among messages linked to each other, or from the same sender with one of `unique_types`."""
    unique_types: tuple[str, ...] = ()
    """Types of which each sender may make only one message."""
    circles: Callable[[DataFrame, DataFrame], DataFrame] | None = None
    """Circular links, from holdings and links, if times cannot reveal them; the columns of forks."""
    shared_key: str | None = None
    """The kind of fork of two messages with one key; None if a key is a full address."""
    against_time: Callable[[], Column] | None = None
    """When a link to `parent_created` from `created` is against time; None if links do not form a growing graph that
    all servers keep."""
    forwards: bool = False
    """True if its servers forward messages to each other, so that their clock offsets can be estimated."""
    lifetime_us: int | None = None
    """Messages without an explicit end of lifetime have an outcome after this time."""
    overdue: Stage | None = None
    """A message with such a hop changes its outcome when the loss timeout passes."""
    community: Callable[[Column], Column] | None = None
    """`Fabric.community` of a column of servers; None if servers need not hold the same messages."""
    few_holders: Callable[[DataFrame, DataFrame, Sequence[str]], DataFrame] | None = None
    """A faster way to compute the holdings of hops and messages at a few servers."""

    @property
    def is_chained(self) -> bool:
        """True if rows about a message depend on the messages it is linked to."""
        return self.chains is not None or self.circles is not None or bool(self.forks)

    @property
    def name(self) -> str:
        """The name of the fabric."""
        return self.fabric.name

    def agreed(self, given: Agreements) -> Agreements:
        """The agreements that apply to its messages: none if they need none."""
        default = self.fabric.default_agreement
        return {} if default is None else {"": default, **given}

    def decode(self, waiting: DataFrame, given: Agreements) -> DataFrame:
        """The columns of `DECODED`, from rows with `DECODER_INPUT`."""
        if self.native is not None:
            return self.native.fields(waiting, self.agreed(given))
        return waiting.mapInArrow(partial(decode_by, self.fabric, self.agreed(given)), DECODED_SCHEMA)


def signed(audits: Iterable[FabricAudit]) -> list[FabricAudit]:
    """Those whose messages are signed."""
    return [audit for audit in audits if audit.fabric.is_signed]


def communal(audits: Iterable[FabricAudit]) -> list[FabricAudit]:
    """Those whose servers must hold the same messages."""
    return [audit for audit in audits if audit.community is not None]


def is_of(audits: Iterable[FabricAudit]) -> Column:
    """True if a row belongs to one of these fabrics."""
    names = [audit.name for audit in audits]
    return F.col("fabric").isin(*names) if names else F.lit(False)


def by_fabric(audits: Iterable[FabricAudit], choose: Callable[[FabricAudit], Column | Any], default: Column) -> Column:
    """For each row the value of `choose` for its fabric, else the default."""
    chosen = default
    for audit in audits:
        chosen = F.when(F.col("fabric") == audit.name, choose(audit)).otherwise(chosen)
    return chosen


def union(parts: Iterable[DataFrame]) -> DataFrame:
    """The rows of all parts; at least one is required."""
    return reduce(DataFrame.unionByName, parts)
