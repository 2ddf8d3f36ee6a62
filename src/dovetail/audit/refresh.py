"""Bringing the tables to where silver is: all of them anew, or of each what a changeset concerns.

A row of gold depends on the hops and bytes of its own message, on the messages it is linked with, on the moment, and on
a few things that all rows share: settings, the names of the servers, the offsets of their clocks. Where a shared thing
has changed, or nothing was made before, all rows are computed. Otherwise the same transforms get what the changeset
has, and `Step.scope` says which of their rows take the place of which.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by

from dovetail.audit.arrow_sets import distinct, pick
from dovetail.audit.changeset import ADDRESS, Changeset, of_fabrics
from dovetail.audit.fabric_audit import FabricAudit, communal
from dovetail.audit.local_rows import from_arrow
from dovetail.audit.session import is_one_partition, tune
from dovetail.audit.state_tables import STORED
from dovetail.audit.steps import Scope, Step
from dovetail.audit.transforms.forks import PAIR_KINDS
from dovetail.audit.transforms.holdings import SIGHTINGS
from dovetail.audit.warehouse import Warehouse

MANY_PEERS = 10
"""From so many peers on, deliveries make a lake larger than its hops do."""

MAX_PARTIALS = 64
"""Partial sums are added up when a table has them in more files than these."""

SILVER = ("hops", "messages", "links")


@dataclass(slots=True)
class Refresh:
    """One bringing up to date. `size` is how many rows the lake has, for tuning."""

    spark: SparkSession
    warehouse: Warehouse
    steps: Sequence[Step]
    audits: Sequence[FabricAudit]
    servers: DataFrame
    as_of: dt.datetime
    size: int
    say: Callable[[str], None]
    inputs: dict[str, DataFrame] = field(default_factory=dict)
    _kept: list[DataFrame] = field(default_factory=list)
    _shaken: set[str] = field(default_factory=set)
    """Tables of which any row may have changed."""

    def whole(self) -> None:
        """Compute all tables from all of silver."""
        tune(self.spark, self.size)
        self.inputs = {name: self.warehouse.read(name) for name in SILVER} | {"servers": self.servers} | self._absent()
        made = {step.name for step in self.steps}
        for step in self.steps:
            self.say(step.name)
            self._build_whole(step)
        for name, table in STORED.items():
            if table.layer == "gold" and name not in (*made, "integrity", "findings"):
                self.warehouse.overwrite_arrow(name, table.arrow.empty_table())
        self._release()

    def _absent(self) -> dict[str, DataFrame]:
        """Tables without rows, which steps read though no fabric of this lake makes any."""
        made = {step.name for step in self.steps} | {*SILVER, "servers"}
        names = {name for step in self.steps for name in step.inputs if name not in made}
        return {name: from_arrow(self.spark, STORED[name].arrow.empty_table(), STORED[name].schema) for name in names}

    def _build_whole(self, step: Step) -> None:
        rows = step.build(self.inputs, self.as_of)
        if step.scope is Scope.PASSING:
            self.inputs[step.name] = self._keep(rows)
        else:
            self.warehouse.overwrite(step.name, rows)
            self.inputs[step.name] = self.warehouse.read(step.name)

    def changed(self, changes: Changeset) -> None:
        """Replace what a changeset concerns."""
        peers = sum(
            len(pick(self.warehouse.arrow("servers"), pa.table({"fabric": [audit.name]})))
            for audit in communal(self.audits)
        )
        rows = max(changes.rows, changes.rows * peers // MANY_PEERS)
        tune(self.spark, rows)
        now = {name: self._local(changes.now[name], name) for name in SILVER}
        self.inputs = {**now, "servers": self.servers, **self._absent()}
        own = {"hops": self._local(changes.own_hops, "hops"), "messages": self._local(changes.own_messages, "messages")}
        before: dict[str, DataFrame] = {"hops": self._local(changes.before["hops"], "hops")}
        holdings = changes.before[SIGHTINGS.name]
        before[SIGHTINGS.name] = self._local(holdings, SIGHTINGS.name)
        decoded = distinct(holdings.filter(pc.field("is_decoded")).select(ADDRESS))
        before["messages"] = self._local(pick(changes.own_messages, decoded), "messages")
        for step in self.steps:
            self.say(step.name)
            self._follow(step, changes, own, before)
            tune(self.spark, rows)
        self._release()

    def _follow(self, step: Step, changes: Changeset, own: dict[str, DataFrame], before: dict[str, DataFrame]) -> None:
        """Bring one table up to date; `own` and `before` have what changed messages are told from, and were."""
        if not self._shaken.isdisjoint(step.inputs):
            self._shaken.add(step.name)
            tune(self.spark, self.size)
            whole = {name: self._whole_input(name) for name in step.inputs}
            self.warehouse.overwrite(step.name, step.build(whole, self.as_of))
            return
        match step.scope:
            case Scope.PASSING:
                self.inputs[step.name] = self._keep(step.build(self.inputs, self.as_of))
            case Scope.WHOLE:
                self._follow_whole(step)
            case Scope.SUMS:
                self._follow_sums(step, own, before)
            case Scope.EVIDENCE:
                self._follow_evidence(step, changes)
            case _:
                self._follow_keys(step, changes, own, before)

    # whole

    def _whole_input(self, name: str) -> DataFrame:
        """All rows of a table; one that is not stored is computed from those it is told from."""
        if name in STORED:
            return self.servers if name == "servers" else self.warehouse.read(name)
        (step,) = (step for step in self.steps if step.name == name)
        return step.build({other: self._whole_input(other) for other in step.inputs}, self.as_of)

    def _follow_whole(self, step: Step) -> None:
        """A small table; what is told from it stays as it is where it does."""
        rows = step.build(self.inputs, self.as_of).toArrow().cast(step.table.arrow)
        was = self.warehouse.arrow(step.name)
        if not _same(rows, was):
            self.warehouse.overwrite_arrow(step.name, rows)
        if not _same(rows.select(step.keys), was.select(step.keys)):
            self._shaken.add(step.name)
        self.inputs[step.name] = from_arrow(self.spark, rows, step.table.schema)

    # rows by their keys

    def _follow_keys(
        self, step: Step, changes: Changeset, own: dict[str, DataFrame], before: dict[str, DataFrame]
    ) -> None:
        concerned, gone = self._keys(step, changes)
        made = self._keep(step.build(self.inputs, self.as_of))
        rows = self._among(made, concerned)
        if any(step.name in other.inputs and other.scope is Scope.SUMS for other in self.steps):
            rows = self._keep(rows)
            own[step.name] = rows
            if step.name not in before:
                before[step.name] = self._local(self.warehouse.lookup(step.name, gone), step.name)
                tune(self.spark, changes.rows)
        self.warehouse.replace(step.name, rows, gone)
        if step.expiring is not None:
            self.warehouse.expire(step.name, *step.expiring, self.as_of)
        if step.name == SIGHTINGS.name:
            self.inputs[step.name] = self._holdings(made, changes)

    def _keys(self, step: Step, changes: Changeset) -> tuple[pa.Table, pa.Table]:
        """The keys of the rows that are concerned, and those of them that there can be old rows of."""
        table = {Scope.CHANGED: changes.changed, Scope.BOUND: changes.bound}.get(step.scope)
        new = pick(changes.changed, changes.known, others=True)
        if table is None:
            names = list(changes.children.column_names)
            return changes.children, pick(changes.children, new.rename_columns(names), others=True)
        gone = pick(table, new, others=True)
        if step.keys == tuple(ADDRESS):
            return table, gone
        empty = pa.table({"message": pa.array([b""], pa.binary())})  # rows that are about no message
        concerned, old = (
            pa.concat_tables([of_fabrics(keys, communal(self.audits)).select(["message"]), empty])
            for keys in (table, gone)
        )
        return concerned, old

    def _among(self, rows: DataFrame, keys: pa.Table) -> DataFrame:
        few = from_arrow(self.spark, keys)
        on = keys.column_names
        if on == ["message"]:
            few = few.withColumnRenamed("message", "_message")
            is_one = F.coalesce(rows["message"], F.lit(b"")) == few["_message"]
            return rows.join(few.hint("broadcast"), on=is_one, how="left_semi")
        return rows.join(few.hint("broadcast"), on=on, how="left_semi")

    def _holdings(self, made: DataFrame, changes: Changeset) -> DataFrame:
        """Those that were computed, and those of neighbours that were not."""
        near = self._local(changes.neighbours, SIGHTINGS.name)
        return self._keep(made.unionByName(near.join(made.select(*ADDRESS), on=ADDRESS, how="left_anti")))

    # sums

    def _follow_sums(self, step: Step, own: Mapping[str, DataFrame], before: Mapping[str, DataFrame]) -> None:
        plus = step.build(own, self.as_of).toArrow().cast(step.table.arrow)
        minus = step.build(before, self.as_of).toArrow().cast(step.table.arrow)
        if step.least:
            self._follow_least(step, plus, minus)
            return
        for column in step.table.sums:
            index = minus.schema.get_field_index(column)
            minus = minus.set_column(index, minus.schema.field(index), pc.negate(minus[column]))
        rows = _net(pa.concat_tables([plus, minus]), step)
        self.warehouse.append_arrow(step.name, rows)
        if self.warehouse.files(step.name) > MAX_PARTIALS:
            self.warehouse.overwrite(step.name, self.warehouse.read(step.name))
        if any(step.name in other.inputs for other in self.steps):
            self.inputs[step.name] = self.warehouse.read(step.name)

    def _follow_least(self, step: Step, plus: pa.Table, minus: pa.Table) -> None:
        """The least of each key, and how many there are: computed from all rows if a least one was taken away."""
        (least,) = step.least
        (count,) = [name for name in step.table.names if name not in (*step.table.key, least)]
        was, gone, now = (
            {tuple(row[name] for name in step.table.key): row for row in table.to_pylist()}
            for table in (self.warehouse.arrow(step.name), minus, plus)
        )
        merged = []
        for key in {*was, *now}:
            old, out, new = was.get(key, {}), gone.get(key, {}), now.get(key, {})
            if out and out[least] == old.get(least) and (not new or new[least] > out[least]):
                tune(self.spark, self.size)
                whole = {name: self.warehouse.read(name) for name in step.inputs}
                rows = step.build(whole, self.as_of).toArrow().cast(step.table.arrow)
                break
            values = [row[least] for row in (old, new) if row]
            many = old.get(count, 0) - out.get(count, 0) + new.get(count, 0)
            merged.append({**dict(zip(step.table.key, key, strict=True)), least: min(values), count: many})
        else:
            rows = pa.Table.from_pylist(merged, schema=step.table.arrow)
        if not _same(rows, self.warehouse.arrow(step.name)):
            self.warehouse.overwrite_arrow(step.name, rows)
        self.inputs[step.name] = from_arrow(self.spark, rows, step.table.schema)

    # rows that name several messages

    def _follow_evidence(self, step: Step, changes: Changeset) -> None:
        """A row about two messages is replaced if one of them has changed. A group may have grown by a message that was
        not in it: all groups about a subject are replaced if one of them has, or had, a changed message.
        """
        made = self._keep(step.build(self.inputs, self.as_of))
        if not made.take(1) and not self.warehouse.rows(step.name):
            return
        present = self.warehouse.read(step.name)
        changed = self._local(changes.changed, "messages", ADDRESS)
        subject, exact = ["fabric", "kind", "subject"], ["fabric", "kind", "subject", "evidence"]
        hit = self._keep(
            present.unionByName(made)
            .select(*exact, F.explode("evidence").alias("message"))
            .join(changed.hint("broadcast"), on=ADDRESS, how="left_semi")
            .select(*exact)
            .distinct()
        )
        is_pair = F.col("kind").isin(*PAIR_KINDS)
        subjects, pairs = hit.where(~is_pair).select(*subject).distinct(), hit.where(is_pair)

        def concerned(rows: DataFrame) -> DataFrame:
            groups = rows.where(~is_pair).join(subjects, on=subject, how="left_semi")
            return groups.unionByName(rows.where(is_pair).join(pairs, on=exact, how="left_semi"))

        def others(rows: DataFrame) -> DataFrame:
            groups = rows.where(~is_pair).join(subjects, on=subject, how="left_anti")
            return groups.unionByName(rows.where(is_pair).join(pairs, on=exact, how="left_anti"))

        if hit.take(1):
            self.warehouse.overwrite(step.name, others(present).unionByName(concerned(made)))

    # what is between

    def _local(self, rows: pa.Table, name: str, columns: Sequence[str] | None = None) -> DataFrame:
        table = STORED[name]
        chosen = rows.select(list(columns or table.names))
        return from_arrow(self.spark, chosen, None if columns else table.schema)

    def _keep(self, rows: DataFrame) -> DataFrame:
        """Rows that several plans read, computed once: here if they are few, else where they are."""
        if is_one_partition(self.spark):
            return from_arrow(self.spark, rows.toArrow(), rows.schema)
        kept = rows.persist()
        self._kept.append(kept)
        return kept

    def _release(self) -> None:
        for rows in self._kept:
            rows.unpersist()
        self._kept.clear()


def _net(rows: pa.Table, step: Step) -> pa.Table:
    """Partial sums, each key once, without those that come to nothing."""
    sums = step.table.sums
    summed = rows.group_by(list(step.table.key)).aggregate([(name, "sum") for name in sums])
    summed = summed.rename_columns([name.removesuffix("_sum") for name in summed.column_names]).select(step.table.names)
    is_any = pc.not_equal(summed[sums[0]], 0)
    for name in sums[1:]:
        is_any = pc.or_(is_any, pc.not_equal(summed[name], 0))
    return summed.filter(is_any).cast(step.table.arrow)


def _same(one: pa.Table, other: pa.Table) -> bool:
    return sorted(map(repr, one.to_pylist())) == sorted(map(repr, other.to_pylist()))
