"""The tables as data: what each is built from, how, and how it follows changes. Each table is defined once, here.

A full run gives every transform its complete inputs. An incremental run gives the same transforms only what has changed
(`changeset`), and the results replace the affected rows (`refresh`).
"""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc
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
from dovetail.audit.transforms.holdings import HOLDINGS, holdings
from dovetail.audit.transforms.skew import ONE_WAY_DELAYS, SENT, least_delays, skew
from dovetail.audit.transforms.suspect_links import SUSPECT_LINKS, suspect_links
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
"""The inputs of the tables that are read from the lake."""

_BETWEEN = {
    HOLDINGS.name: ("hops", "messages"),
    ANSWERS.name: ("hops", "messages", "links"),
    "servers": ("hops",),
    SUSPECT_LINKS.name: ("hops", "messages", "links"),
    ONE_WAY_DELAYS.name: ("hops",),
    PEER_COUNTS.name: ("hops",),
}
"""Internal tables between silver and gold, and their inputs."""


class Scope(enum.Enum):
    """Which rows of a table a changeset affects."""

    CHANGED = "changed"
    """Those of changed messages."""
    LINKED = "linked"
    """Also those of messages that answer or are answered by a changed one."""
    CHILDREN = "children"
    """Those of links from or to a changed message."""
    EVIDENCE = "evidence"
    """Those that name a changed message among others."""
    SUMS = "sums"
    """The old contribution of changed messages is subtracted, and the new one added."""
    WHOLE = "whole"
    """All: the table is small, or derived from small ones."""
    PASSING = "passing"
    """The table is not stored: only other steps of the run read it."""


@dataclass(frozen=True, slots=True)
class Step:
    """A table, its inputs, and how it is built: `transform(*inputs)`, with `as_of=` if it depends on the time."""

    table: Table
    inputs: tuple[str, ...]
    transform: Transform
    scope: Scope
    keys: tuple[str, ...] = ("fabric", "message")
    """The columns by which rows are replaced; in a whole table those on which rows of other tables depend."""
    least: tuple[str, ...] = ()
    """Columns of a table of sums that hold the minimum instead: if that is removed, it is recomputed."""
    needs: Mapping[str, pc.Expression | None] = field(default_factory=dict)
    """Inputs without which there are no rows, and which of their rows count."""
    is_dated: bool = False
    is_apart: bool = False
    """Whether rows of a fabric depend on no other, and fabrics with few of them are worth a plan of their own."""
    expiring: tuple[str, str] | None = None
    """A column that becomes false when the time in another has passed, whatever else happens to its row."""

    @property
    def name(self) -> str:
        """The name of the table."""
        return self.table.name

    def build(self, inputs: Mapping[str, DataFrame], as_of: dt.datetime) -> DataFrame:
        """The rows built from these inputs."""
        given = [inputs[name] for name in self.inputs]
        rows = self.transform(*given, as_of=as_of) if self.is_dated else self.transform(*given)
        return rows.select(*self.table.names)


def gold_steps(
    loss_timeout_us: int = 30_000_000,
    audits: Sequence[FabricAudit] = tuple(AUDITS),
    servers: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> tuple[Step, ...]:
    """Gold, every input before its use; nothing is planned for absent fabrics."""
    with_chains = [audit for audit in audits if audit.chains is not None]
    chained = _is_one_of("fabric", (audit.name for audit in with_chains))
    answered = _is_one_of("relation", (str(audit.answers) for audit in audits if audit.answers is not None))
    held = pc.field("first_seen").is_valid()
    steps = (
        Step(HOLDINGS, ("hops", "messages"), partial(holdings, audits=audits, servers=servers), Scope.CHANGED),
        Step(
            ONE_WAY_DELAYS,
            ("hops",),
            least_delays,
            Scope.SUMS,
            least=("least_us",),
            needs={"hops": _is_one_of("stage", SENT)},
        ),
        Step(schemas.SKEW, (ONE_WAY_DELAYS.name,), skew, Scope.WHOLE, keys=("server", "other", "offset_us")),
        Step(
            ANSWERS,
            ("hops", "messages", "links"),
            partial(answers, audits=audits),
            Scope.PASSING,
            needs={"links": answered},
        ),
        Step(
            schemas.DELIVERIES,
            ("hops", "messages", HOLDINGS.name, ANSWERS.name, "servers", "skew"),
            partial(_deliveries, loss_timeout_us=loss_timeout_us, audits=audits),
            Scope.LINKED,
            is_dated=True,
            is_apart=True,
        ),
        Step(
            schemas.LATENCY,
            ("deliveries",),
            latency,
            Scope.SUMS,
            needs={"deliveries": pc.field("latency_us").is_valid()},
        ),
        Step(
            schemas.CHAINS,
            ("hops", "messages", "links"),
            partial(chains, audits=with_chains),
            Scope.LINKED,
            needs={"messages": chained},
            is_apart=True,
        ),
        Step(
            SUSPECT_LINKS,
            ("links", HOLDINGS.name, "servers"),
            partial(suspect_links, audits=audits),
            Scope.PASSING,
            needs={"links": None},
        ),
        Step(
            schemas.GAPS,
            (SUSPECT_LINKS.name, HOLDINGS.name),
            gaps,
            Scope.CHILDREN,
            keys=("fabric", "child"),
            needs={SUSPECT_LINKS.name: None, HOLDINGS.name: held},
            is_dated=True,
            expiring=("unexpired", "expires"),
        ),
        Step(
            schemas.FORKS,
            (SUSPECT_LINKS.name, HOLDINGS.name, "messages", "links"),
            partial(forks, audits=audits),
            Scope.EVIDENCE,
            needs={HOLDINGS.name: held},
        ),
        Step(
            PEER_COUNTS,
            (HOLDINGS.name,),
            partial(peer_counts, audits=audits),
            Scope.SUMS,
            needs={HOLDINGS.name: held & _is_one_of("fabric", (audit.name for audit in communal(audits)))},
        ),
        Step(
            schemas.COVERAGE,
            (HOLDINGS.name, PEER_COUNTS.name, "servers"),
            partial(coverage, audits=audits),
            Scope.CHANGED,
            keys=("message",),
        ),
        Step(schemas.TRAFFIC, ("hops", "messages"), traffic, Scope.SUMS, needs={"hops": None}),
    )
    absent = set()
    if not audits:
        absent = {step.name for step in steps}
    if not any(audit.forwards for audit in audits):
        absent |= {ONE_WAY_DELAYS.name, "skew"}
    if not with_chains:
        absent.add("chains")
    if not communal(audits):
        absent |= {"coverage", PEER_COUNTS.name}
    return tuple(step for step in steps if step.name not in absent)


def _is_one_of(column: str, values: Iterable[str]) -> pc.Expression:
    """Whether a column has one of these values, which may be an empty collection."""
    return pc.field(column).isin(pa.array(values, pa.string()))


def _deliveries(
    *tables: DataFrame, as_of: dt.datetime, loss_timeout_us: int, audits: Sequence[FabricAudit]
) -> DataFrame:
    return deliveries(*tables, moment=Moment(as_of, loss_timeout_us), audits=audits)


def graph() -> dict[str, tuple[str, ...]]:
    """Every table with its inputs."""
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
