"""The steps of the audit as data, so that the graph can be printed, tested and run in order."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from pyspark.sql import DataFrame

from dovetail.audit import schemas
from dovetail.audit.fabric_audit import FabricAudit, Moment, communal
from dovetail.audit.fabrics import AUDITS
from dovetail.audit.schemas import Table
from dovetail.audit.transforms.answers import ANSWERS, answers
from dovetail.audit.transforms.chains import chains
from dovetail.audit.transforms.coverage import coverage
from dovetail.audit.transforms.deliveries import deliveries, latency
from dovetail.audit.transforms.forks import forks
from dovetail.audit.transforms.gaps import gaps
from dovetail.audit.transforms.holdings import SIGHTINGS, sightings
from dovetail.audit.transforms.skew import LEGS, fastest_legs, skew
from dovetail.audit.transforms.suspect_links import EDGES, edges
from dovetail.audit.transforms.traffic import traffic

Transform = Callable[..., DataFrame]

SOURCES: dict[str, tuple[str, ...]] = {
    "integrity": ("manifests", "lake"),
    "hops": ("lake",),
    "messages": ("lake", "keys"),
    "links": ("messages",),
    "keys": ("messages",),
    "quarantine": ("lake", "messages"),
}
"""What the tables that a batch makes from the lake are made from."""

_BETWEEN = {
    "sightings": ("hops", "messages"),
    "answers": ("hops", "messages", "links"),
    "servers": ("hops",),
    "edges": ("hops", "messages", "links"),
    "legs": ("hops",),
}
"""What is kept between silver and gold for the audit's own use, and what it is made from."""


@dataclass(frozen=True, slots=True)
class Step:
    """A table, what it is made from, and how: `transform(*inputs)`, with `as_of=` where it depends on the moment."""

    name: str
    inputs: tuple[str, ...]
    transform: Transform
    schema: Table
    is_dated: bool = False


def gold_steps(
    patience_us: int = 30_000_000,
    audits: Sequence[FabricAudit] = tuple(AUDITS),
    servers: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> tuple[Step, ...]:
    """Gold, every input before its use; nothing is planned for fabrics that are not there."""
    with_chains = [audit for audit in audits if audit.chains is not None]
    steps = (
        Step("sightings", ("hops", "messages"), partial(sightings, audits=audits, servers=servers), SIGHTINGS),
        Step("legs", ("hops",), fastest_legs, LEGS),
        Step("skew", ("legs",), skew, schemas.SKEW),
        Step("answers", ("hops", "messages", "links"), partial(answers, audits=audits), ANSWERS),
        Step(
            "deliveries",
            ("hops", "messages", "sightings", "answers", "servers", "skew"),
            partial(_deliveries, patience_us=patience_us, audits=audits),
            schemas.DELIVERIES,
            is_dated=True,
        ),
        Step("latency", ("deliveries",), latency, schemas.LATENCY),
        Step("chains", ("hops", "messages", "links"), partial(chains, audits=with_chains), schemas.CHAINS),
        Step("edges", ("links", "sightings", "servers"), partial(edges, audits=audits), EDGES),
        Step("gaps", ("edges", "sightings"), gaps, schemas.GAPS, is_dated=True),
        Step("forks", ("edges", "sightings", "messages", "links"), partial(forks, audits=audits), schemas.FORKS),
        Step("coverage", ("sightings", "servers"), partial(coverage, audits=audits), schemas.COVERAGE),
        Step("traffic", ("hops", "messages"), traffic, schemas.TRAFFIC),
    )
    absent = set()
    if not audits:
        absent = {step.name for step in steps}
    if not any(audit.forwards for audit in audits):
        absent |= {"legs", "skew"}
    if not with_chains:
        absent.add("chains")
    if not communal(audits):
        absent.add("coverage")
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
