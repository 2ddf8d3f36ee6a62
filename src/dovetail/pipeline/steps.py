"""The steps of the audit as data, so that the graph can be printed, tested and run in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame

from dovetail.pipeline import schemas
from dovetail.pipeline.schemas import Table
from dovetail.pipeline.transforms.chains import chains
from dovetail.pipeline.transforms.coverage import coverage
from dovetail.pipeline.transforms.deliveries import deliveries, latency
from dovetail.pipeline.transforms.forks import forks
from dovetail.pipeline.transforms.gaps import gaps
from dovetail.pipeline.transforms.skew import skew
from dovetail.pipeline.transforms.traffic import traffic

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


@dataclass(frozen=True, slots=True)
class Step:
    """A table, what it is made from, and how: `transform(*inputs)`, with `as_of=` where it depends on the moment."""

    name: str
    inputs: tuple[str, ...]
    transform: Transform
    schema: Table
    is_dated: bool = False


def gold_steps(patience_us: int = 30_000_000) -> tuple[Step, ...]:
    """Gold, in an order in which every input comes before its use."""
    patient = partial(deliveries, patience_us=patience_us)
    return (
        Step("skew", ("hops",), skew, schemas.SKEW),
        Step("deliveries", ("hops", "messages", "skew"), patient, schemas.DELIVERIES, is_dated=True),
        Step("latency", ("deliveries",), latency, schemas.LATENCY),
        Step("chains", ("hops", "messages", "links"), chains, schemas.CHAINS),
        Step("gaps", ("hops", "messages", "links"), gaps, schemas.GAPS, is_dated=True),
        Step("forks", ("hops", "messages", "links"), forks, schemas.FORKS),
        Step("coverage", ("hops", "messages"), coverage, schemas.COVERAGE, is_dated=True),
        Step("traffic", ("hops", "messages"), traffic, schemas.TRAFFIC),
    )


def graph() -> dict[str, tuple[str, ...]]:
    """Every table with what it is made from."""
    made = {step.name: step.inputs for step in gold_steps()}
    return {
        **SOURCES,
        **made,
        "findings": ("integrity", "quarantine", "messages", "deliveries", "chains", "gaps", "forks"),
    }
