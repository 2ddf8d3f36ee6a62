"""Builds gold from all of silver, table by table.

A row of gold depends on the hops and bytes of its own message, on the messages it is linked to, on the time of the
audit, and on inputs shared by all rows: settings, the names of the servers, the offsets of their clocks. If a shared
input has changed, or nothing was built before, all rows are computed, here. Otherwise only changed rows are
(`increment`).

In a large lake, the deliveries and chains of fabrics with few hops are computed like those of a small one: in Spark
their many joins cost what their plan costs, however few rows they have.

For small jobs, steps whose inputs are ready are planned in parallel, and their results stay in this process as Arrow
for the steps that read them. Tables are written one after another.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the conventional name

from dovetail.audit.fabric_audit import FabricAudit
from dovetail.audit.local_rows import from_arrow
from dovetail.audit.session import SMALL_ROWS, is_one_partition, tune
from dovetail.audit.state_tables import STORED
from dovetail.audit.steps import Scope, Step
from dovetail.audit.warehouse import Rows, Warehouse

MANY_PEERS = 10
"""From this many peers on, deliveries need more space than the hops of a lake."""

SILVER = ("hops", "messages", "links")

_PLANNING = ThreadPoolExecutor(2, thread_name_prefix="planning")
"""Kept for the life of the process, since every Python thread has a Java thread of its own."""


class Inputs(Mapping[str, DataFrame]):
    """Tables that steps read; those in Arrow are sent to Spark on first use, once."""

    def __init__(self, spark: SparkSession, rows: Mapping[str, Rows]) -> None:
        self.rows = dict(rows)
        self._spark = spark
        self._frames: dict[str, DataFrame] = {}
        self._lock = threading.Lock()

    def __setitem__(self, name: str, rows: Rows) -> None:
        self.rows[name] = rows
        self._frames.pop(name, None)

    def __getitem__(self, name: str) -> DataFrame:
        with self._lock:
            if name not in self._frames:
                rows = self.rows[name]
                if isinstance(rows, pa.Table):
                    is_all = name in STORED and rows.column_names == STORED[name].names
                    rows = from_arrow(self._spark, rows, STORED[name].schema if is_all else None)
                self._frames[name] = rows
            return self._frames[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def suffice(self, step: Step) -> bool:
        """Whether a step may have rows, judging by those of its inputs that are in this process."""
        for name, where in step.needs.items():
            rows = self.rows[name]
            if isinstance(rows, pa.Table) and not (rows if where is None else rows.filter(where)).num_rows:
                return False
        return True


@dataclass(slots=True, kw_only=True)
class Refresh:
    """One build of gold. `steps_of` gives the steps for some fabrics; `size` is the number of rows of the lake.

    `hops` is the number of hops of each fabric.
    """

    spark: SparkSession
    warehouse: Warehouse
    steps_of: Callable[[Sequence[FabricAudit]], Sequence[Step]]
    audits: Sequence[FabricAudit]
    servers: DataFrame
    as_of: dt.datetime
    size: int
    hops: Mapping[str, int]
    report: Callable[[str], None]
    _kept: list[DataFrame] = field(default_factory=list)
    _begun: dict[str, Future[Rows]] = field(default_factory=dict)

    def whole(self) -> None:
        """Compute all tables from all of silver."""
        tune(self.spark, self.size)
        steps = self.steps_of(self.audits)
        inputs = Inputs(self.spark, {name: self.warehouse.take(name) for name in SILVER} | {"servers": self.servers})
        for name in absent(steps):
            inputs[name] = STORED[name].arrow.empty_table()
        few = self._few()
        for step in steps:
            self.report(step.name)
            self.begin(steps, inputs)
            rows = self._build_apart(step, few, inputs) if few and step.is_apart else self.build(step, inputs)
            if step.scope is not Scope.PASSING:
                self.warehouse.overwrite(step.name, rows)
            is_here = step.scope is Scope.PASSING or isinstance(rows, pa.Table)
            inputs[step.name] = rows if is_here else self.warehouse.read(step.name)
        made = {step.name for step in steps}
        for name, table in STORED.items():
            if table.layer == "gold" and name not in (*made, "integrity", "findings"):
                self.warehouse.overwrite_arrow(name, table.arrow.empty_table())
        self.release()

    def begin(self, steps: Iterable[Step], inputs: Inputs) -> None:
        """Start planning the steps whose inputs are ready, if their results will be collected here."""
        for step in steps:
            is_ready = step.name not in self._begun and inputs.keys() >= set(step.inputs)
            if is_ready and is_one_partition(self.spark):
                self._begun[step.name] = _PLANNING.submit(_plan, step, inputs, self.as_of)

    def build(self, step: Step, inputs: Inputs) -> Rows:
        """The result of a step, computed once for all its readers; collected in this process if it is small."""
        if step.name in self._begun:
            return self._begun[step.name].result()
        if not inputs.suffice(step):
            return step.table.arrow.empty_table()
        rows = step.build(inputs, self.as_of)
        if is_one_partition(self.spark) or step.scope is Scope.WHOLE or step.least:  # small in any lake
            return rows.toArrow().cast(step.table.arrow)
        return self.keep(rows) if step.scope is Scope.PASSING else rows

    def _few(self) -> list[FabricAudit]:
        """The fabrics of a large lake with so few hops that a small plan costs less.

        Those of communities have a row for each message and server, and one without chains has no joins to speak of.
        """
        few: list[FabricAudit] = []
        left = 0 if is_one_partition(self.spark) else SMALL_ROWS
        for audit in self.audits:
            hops = self.hops.get(audit.name, 0)
            if audit.community is None and audit.chains is not None and hops <= left:
                few.append(audit)
                left -= hops
        return few

    def _build_apart(self, step: Step, few: Sequence[FabricAudit], inputs: Inputs) -> Rows:
        """The result of a step, that of these fabrics computed in this process and with a plan of its own."""
        names = [audit.name for audit in few]
        others = [audit for audit in self.audits if audit not in few]
        (own, *_), rest = ([one for one in self.steps_of(part) if one.name == step.name] for part in (few, others))
        given: dict[str, Rows] = {}
        for table in own.inputs:
            rows = inputs[table]
            given[table] = (rows.where(F.col("fabric").isin(names)) if "fabric" in rows.columns else rows).toArrow()
        tune(self.spark, 0)
        made = _plan(own, Inputs(self.spark, given), self.as_of)
        tune(self.spark, self.size)
        made_rest = self.build(rest[0], inputs) if rest else made
        if isinstance(made_rest, pa.Table):
            return made
        return made_rest.unionByName(from_arrow(self.spark, made, step.table.schema))

    def keep(self, rows: DataFrame) -> DataFrame:
        """Persist rows that several plans read, so that Spark computes them once."""
        kept = rows.persist()
        self._kept.append(kept)
        return kept

    def release(self) -> None:
        """Release what was kept."""
        for rows in self._kept:
            rows.unpersist()
        self._kept.clear()


def _plan(step: Step, inputs: Inputs, as_of: dt.datetime) -> Rows:
    if not inputs.suffice(step):
        return step.table.arrow.empty_table()
    return step.build(inputs, as_of).toArrow().cast(step.table.arrow)


def absent(steps: Sequence[Step]) -> set[str]:
    """Tables that these steps read, that none of them makes, and that are not silver."""
    made = {step.name for step in steps} | {*SILVER, "servers"}
    return {name for step in steps for name in step.inputs if name not in made}
