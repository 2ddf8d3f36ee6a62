"""The tables as data: what each is made from, how, and how it follows changes. A table is defined here and once.

A whole run gives every transform its whole inputs. A run after another gives the same transforms only what has changed
(`changeset`), and what they give takes the place of the rows that it concerns (`refresh`).
"""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from pyspark.sql import DataFrame

from dovetail.audit import schemas
from dovetail.audit.fabric_audit import FabricAudit, Moment, communal
from dovetail.audit.fabrics import AUDITS
from dovetail.audit.table import Table
from dovetail.audit.transforms.answers import ANSWERS, answers
from dovetail.audit.transforms.chains import chains
from dovetail.audit.transforms.coverage import PEER_COUNTS, coverage, peer_counts
from dovetail.audit.transforms.deliveries import deliveries, latency
from dovetail.audit.transforms.forks import forks
from dovetail.audit.transforms.gaps import gaps
from dovetail.audit.transforms.holdings import SIGHTINGS, sightings
from dovetail.audit.transforms.skew import LEGS, fastest_legs, skew
from dovetail.audit.transforms.suspect_links import EDGES, edges
from dovetail.audit.transforms.traffic import traffic

Transform = Callable[..., DataFrame]

SOURCES: dict[str, tuple[str, ...]] = {
    "runs": ("every table",),
    "ingest": ("manifests", "lake"),
    "integrity": ("ingest",),
    "hops": ("lake",),
    "messages": ("lake", "keys"),
    "links": ("messages",),
    "keys": ("messages",),
    "quarantine": ("lake", "messages"),
}
"""What the tables that are read off the lake are made from."""

_BETWEEN = {
    SIGHTINGS.name: ("hops", "messages"),
    ANSWERS.name: ("hops", "messages", "links"),
    "servers": ("hops",),
    EDGES.name: ("hops", "messages", "links"),
    LEGS.name: ("hops",),
    PEER_COUNTS.name: ("hops",),
}
"""What is kept between silver and gold for the audit's own use, and what it is made from."""


class Scope(enum.Enum):
    """Which rows of a table a changeset concerns."""

    CHANGED = "changed"
    """Those of changed messages."""
    BOUND = "bound"
    """Those of messages that answer or are answered by a changed one, too."""
    CHILDREN = "children"
    """Those of links that lead from or to a changed message."""
    EVIDENCE = "evidence"
    """Those that name a changed message among others."""
    SUMS = "sums"
    """What changed messages contribute is taken away as it was, and added as it is."""
    WHOLE = "whole"
    """All: the table is small, or is told from small ones."""
    PASSING = "passing"
    """The table is not stored: only other steps of the run read it."""


@dataclass(frozen=True, slots=True)
class Step:
    """A table, what it is made from, and how: `transform(*inputs)`, with `as_of=` where it depends on the moment."""

    table: Table
    inputs: tuple[str, ...]
    transform: Transform
    scope: Scope
    keys: tuple[str, ...] = ("fabric", "message")
    """The columns by which rows are replaced; of a whole table those that rows of other tables are told from."""
    least: tuple[str, ...] = ()
    """Columns of a table of sums that hold the least instead: where that is taken away, it is looked for anew."""
    is_dated: bool = False
    expiring: tuple[str, str] | None = None
    """A column that becomes false when the time in another is over, whatever else happens to its row."""

    @property
    def name(self) -> str:
        """The name of the table."""
        return self.table.name

    def build(self, inputs: Mapping[str, DataFrame], as_of: dt.datetime) -> DataFrame:
        """The rows that follow from these inputs."""
        given = [inputs[name] for name in self.inputs]
        rows = self.transform(*given, as_of=as_of) if self.is_dated else self.transform(*given)
        return rows.select(*self.table.names)


def gold_steps(
    patience_us: int = 30_000_000,
    audits: Sequence[FabricAudit] = tuple(AUDITS),
    servers: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> tuple[Step, ...]:
    """Gold, every input before its use; nothing is planned for fabrics that are not there."""
    with_chains = [audit for audit in audits if audit.chains is not None]
    holdings = SIGHTINGS.name
    steps = (
        Step(SIGHTINGS, ("hops", "messages"), partial(sightings, audits=audits, servers=servers), Scope.CHANGED),
        Step(LEGS, ("hops",), fastest_legs, Scope.SUMS, least=("least_us",)),
        Step(schemas.SKEW, (LEGS.name,), skew, Scope.WHOLE, keys=("server", "other", "offset_us")),
        Step(ANSWERS, ("hops", "messages", "links"), partial(answers, audits=audits), Scope.PASSING),
        Step(
            schemas.DELIVERIES,
            ("hops", "messages", holdings, ANSWERS.name, "servers", "skew"),
            partial(_deliveries, patience_us=patience_us, audits=audits),
            Scope.BOUND,
            is_dated=True,
        ),
        Step(schemas.LATENCY, ("deliveries",), latency, Scope.SUMS),
        Step(schemas.CHAINS, ("hops", "messages", "links"), partial(chains, audits=with_chains), Scope.BOUND),
        Step(EDGES, ("links", holdings, "servers"), partial(edges, audits=audits), Scope.PASSING),
        Step(
            schemas.GAPS,
            (EDGES.name, holdings),
            gaps,
            Scope.CHILDREN,
            keys=("fabric", "child"),
            is_dated=True,
            expiring=("unexpired", "expires"),
        ),
        Step(
            schemas.FORKS,
            (EDGES.name, holdings, "messages", "links"),
            partial(forks, audits=audits),
            Scope.EVIDENCE,
        ),
        Step(PEER_COUNTS, (holdings,), partial(peer_counts, audits=audits), Scope.SUMS),
        Step(
            schemas.COVERAGE,
            (holdings, PEER_COUNTS.name, "servers"),
            partial(coverage, audits=audits),
            Scope.CHANGED,
            keys=("message",),
        ),
        Step(schemas.TRAFFIC, ("hops", "messages"), traffic, Scope.SUMS),
    )
    absent = set()
    if not audits:
        absent = {step.name for step in steps}
    if not any(audit.forwards for audit in audits):
        absent |= {LEGS.name, "skew"}
    if not with_chains:
        absent.add("chains")
    if not communal(audits):
        absent |= {"coverage", PEER_COUNTS.name}
    return tuple(step for step in steps if step.name not in absent)


def _deliveries(*tables: DataFrame, as_of: dt.datetime, patience_us: int, audits: Sequence[FabricAudit]) -> DataFrame:
    return deliveries(*tables, moment=Moment(as_of, patience_us), audits=audits)


def graph() -> dict[str, tuple[str, ...]]:
    """Every table with what it is made from."""
    made = {
        step.name: tuple(dict.fromkeys(table for name in step.inputs for table in _BETWEEN.get(name, (name,))))
        for step in gold_steps()
        if step.name in schemas.BY_NAME
    }
    return {
        **SOURCES,
        **made,
        "findings": ("integrity", "quarantine", "messages", "deliveries", "chains", "gaps", "forks"),
    }
