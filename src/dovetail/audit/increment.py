"""Updates gold from a changeset: only the affected rows of each table.

The transforms are those of a full run; `Step.scope` says which rows they replace. Most changesets are small, and then
the cost is one Spark plan per table, whatever its size. So the result of a step is collected once, as Arrow, and
selecting, comparing and writing its rows needs no further plan. A step whose required input rows (`Step.needs`) are
absent is not planned at all, nor are fabrics that the changeset does not touch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the conventional name

from dovetail.audit.arrow_sets import distinct, is_in, pick
from dovetail.audit.changeset import ADDRESS, Changeset, of_fabrics
from dovetail.audit.fabric_audit import communal
from dovetail.audit.local_rows import from_arrow
from dovetail.audit.refresh import MANY_PEERS, SILVER, Inputs, Refresh, absent
from dovetail.audit.schemas import LINKS
from dovetail.audit.session import tune
from dovetail.audit.state_tables import STORED
from dovetail.audit.steps import Scope, Step
from dovetail.audit.transforms.forks import PAIR_KINDS
from dovetail.audit.transforms.holdings import HOLDINGS
from dovetail.audit.warehouse import HELD_ROWS, Rows, without_nulls

MAX_PARTIALS = 64
"""Partial sums are merged when a table has them in more files than this."""

_SIGN = "_sign"
_SUBJECT = ["fabric", "kind", "subject"]
_PLANNED = {Scope.CHANGED, Scope.LINKED, Scope.CHILDREN, Scope.EVIDENCE, Scope.PASSING}


@dataclass(slots=True, kw_only=True)
class Increment(Refresh):
    """One update from a changeset."""

    changes: Changeset
    made: dict[str, Rows] = field(default_factory=dict)
    """By table, the rows that replaced others or were added."""
    invalidated: set[str] = field(default_factory=set)
    """Tables in which any row may have changed."""
    expired: pa.Table = field(default_factory=lambda: LINKS.arrow.empty_table().select(["fabric", "child"]))
    """Links to messages that have since expired."""
    _steps: Sequence[Step] = ()
    _narrow: dict[str, Step] = field(default_factory=dict)
    """The steps restricted to the fabrics that the changeset touches."""
    _same: set[str] = field(default_factory=set)
    """Tables that did not change."""

    @classmethod
    def of(cls, refresh: Refresh, changes: Changeset) -> Increment:
        """An update of the same tables from a changeset."""
        return cls(
            spark=refresh.spark,
            warehouse=refresh.warehouse,
            steps_of=refresh.steps_of,
            audits=refresh.audits,
            servers=refresh.servers,
            as_of=refresh.as_of,
            size=refresh.size,
            hops=refresh.hops,
            report=refresh.report,
            changes=changes,
        )

    def follow(self) -> None:
        """Bring all tables up to date."""
        changes = self.changes
        rows = self.work()
        tune(self.spark, rows)
        self._steps = self.steps_of(self.audits)
        concerned = set(changes.changed["fabric"].unique().to_pylist())
        narrow = self.steps_of([audit for audit in self.audits if audit.name in concerned])
        self._narrow = {step.name: step for step in narrow}
        now = Inputs(self.spark, {name: changes.now[name] for name in SILVER} | {"servers": self.servers})
        for name in absent(self._steps):
            now[name] = STORED[name].arrow.empty_table()
        own = Inputs(self.spark, {"hops": changes.own_hops, "messages": changes.own_messages})
        holdings = changes.before[HOLDINGS.name]
        decoded = distinct(holdings.filter(pc.field("is_decoded")).select(ADDRESS))
        said = pick(changes.own_messages, decoded)
        before = Inputs(self.spark, {"hops": changes.before["hops"], HOLDINGS.name: holdings, "messages": said})
        for step in self._steps:
            self.report(step.name)
            self.begin(self._planned(), now)
            self._follow(self._narrow.get(step.name, step), now, own, before)
            if step.expiring is not None and step.name not in self.invalidated:
                self.expired = self.warehouse.expire(step.name, *step.expiring, self.as_of, step.keys)
            tune(self.spark, rows)

    def _planned(self) -> list[Step]:
        """Steps that depend only on the current inputs."""
        steps = (step for step in self._narrow.values() if step.scope in _PLANNED)
        return [step for step in steps if self.invalidated.isdisjoint(step.inputs)]

    def work(self) -> int:
        """Expected number of rows: each message of a community has one for each of its servers."""
        known = self.warehouse.arrow("servers")
        peers: int = of_fabrics(known, communal(self.audits)).num_rows
        return max(self.changes.rows, self.changes.rows * peers // MANY_PEERS)

    def _follow(self, step: Step, now: Inputs, own: Inputs, before: Inputs) -> None:
        """Bring one table up to date; `own` and `before` are the inputs for changed messages, now and before."""
        if not self.invalidated.isdisjoint(step.inputs):
            self._build_whole(step)
            return
        match step.scope:
            case Scope.PASSING:
                now[step.name] = self.build(step, now)
            case Scope.WHOLE:
                self._follow_whole(step, now)
            case Scope.SUMS:
                self._follow_sums(step, now, own, before)
            case Scope.EVIDENCE:
                self._follow_evidence(step, now)
            case _:
                self._follow_keys(step, now, own, before)

    # whole tables

    def _build_whole(self, step: Step) -> None:
        """Rebuild all rows, if any may have changed."""
        self.invalidated.add(step.name)
        tune(self.spark, self.size)
        (step,) = (one for one in self._steps if one.name == step.name)
        whole = {name: self._whole_input(name) for name in step.inputs}
        self.warehouse.overwrite(step.name, step.build(whole, self.as_of))

    def _whole_input(self, name: str) -> DataFrame:
        """All rows of a table; one that is not stored is computed from its inputs."""
        if name in STORED:
            return self.servers if name == "servers" else self.warehouse.read(name)
        (step,) = (step for step in self._steps if step.name == name)
        return step.build({other: self._whole_input(other) for other in step.inputs}, self.as_of)

    def _follow_whole(self, step: Step, now: Inputs) -> None:
        """Rebuild a small table; tables derived from it are left alone if it does not change."""
        was = self.warehouse.arrow(step.name)
        if self._same.issuperset(step.inputs):
            self._same.add(step.name)
            now[step.name] = was
            return
        rows = step.build(now, self.as_of).toArrow().cast(step.table.arrow)
        if not _same(rows, was):
            self.warehouse.overwrite_arrow(step.name, rows)
        if not _same(rows.select(step.keys), was.select(step.keys)):
            self.invalidated.add(step.name)
        now[step.name] = rows

    # rows by their keys

    def _follow_keys(self, step: Step, now: Inputs, own: Inputs, before: Inputs) -> None:
        concerned, gone = self._keys(step)
        if concerned.num_rows == 1 and step.keys == ("message",):
            return  # no message of a community has changed
        made = self.build(step, now)
        made = made if isinstance(made, pa.Table) else self.keep(made)
        rows = self._among(made, concerned)
        self.made[step.name] = own[step.name] = rows
        if step.name not in before and any(step.name in other.inputs for other in self._sums()):
            before[step.name] = self.warehouse.lookup(step.name, gone)
            tune(self.spark, self.work())
        self.warehouse.replace(step.name, rows, gone)
        if step.name == HOLDINGS.name:
            now[step.name] = self._holdings(made)

    def _sums(self) -> list[Step]:
        return [step for step in self._steps if step.scope is Scope.SUMS]

    def _keys(self, step: Step) -> tuple[pa.Table, pa.Table]:
        """The keys of the affected rows, and those of them that may have old rows."""
        changes = self.changes
        table = {Scope.CHANGED: changes.changed, Scope.LINKED: changes.linked}.get(step.scope)
        new = pick(changes.changed, changes.known, others=True)
        if table is None:
            names = list(changes.children.column_names)
            return changes.children, pick(changes.children, new.rename_columns(names), others=True)
        gone = pick(table, new, others=True)
        if step.keys == tuple(ADDRESS):
            return table, gone
        empty = pa.table({"message": pa.array([b""], pa.binary())})  # rows that concern no message
        concerned, old = (
            pa.concat_tables([of_fabrics(keys, communal(self.audits)).select(["message"]), empty])
            for keys in (table, gone)
        )
        return concerned, old

    def _among(self, rows: Rows, keys: pa.Table) -> Rows:
        """Rows with these keys; a null key in a row counts as empty."""
        if isinstance(rows, pa.Table):
            return rows.filter(is_in(without_nulls(rows.select(keys.column_names)), keys))
        few = from_arrow(self.spark, keys)
        if keys.column_names == ["message"]:
            few = few.withColumnRenamed("message", "_message")
            is_one = F.coalesce(rows["message"], F.lit(b"")) == few["_message"]
            return rows.join(few.hint("broadcast"), on=is_one, how="left_semi")
        return rows.join(few.hint("broadcast"), on=keys.column_names, how="left_semi")

    def _holdings(self, made: Rows) -> Rows:
        """The recomputed holdings, and those of unchanged neighbours."""
        neighbours = self.changes.neighbours.select(HOLDINGS.names)
        if isinstance(made, pa.Table):
            return pa.concat_tables([made, pick(neighbours, made.select(ADDRESS), others=True).cast(made.schema)])
        others = from_arrow(self.spark, neighbours, HOLDINGS.schema)
        return made.unionByName(others.join(made.select(*ADDRESS), on=ADDRESS, how="left_anti"))

    # sums

    def _follow_sums(self, step: Step, now: Inputs, own: Inputs, before: Inputs) -> None:
        signed = [
            step.build(inputs, self.as_of).withColumn(_SIGN, F.lit(sign))
            for sign, inputs in ((1, own), (-1, before))
            if inputs.suffice(step)
        ]
        if not signed:
            self._same.add(step.name)
            if any(step.name in other.inputs for other in self._steps):
                now[step.name] = self.warehouse.arrow(step.name)
            return
        both = signed[0].unionByName(signed[1]) if len(signed) > 1 else signed[0]
        combined = both.toArrow()
        plus, minus = (
            combined.filter(pc.field(_SIGN) == sign).drop_columns([_SIGN]).cast(step.table.arrow) for sign in (1, -1)
        )
        if step.least:
            self._follow_least(step, now, plus, minus)
            return
        for column in step.table.sums:
            index = minus.schema.get_field_index(column)
            minus = minus.set_column(index, minus.schema.field(index), pc.negate(minus[column]))
        rows = _net(pa.concat_tables([plus, minus]), step)
        self.warehouse.append_arrow(step.name, rows)
        if self.warehouse.files(step.name) > MAX_PARTIALS:
            self.warehouse.overwrite(step.name, self.warehouse.read(step.name))
        if any(step.name in other.inputs for other in self._steps):
            now[step.name] = self.warehouse.read(step.name)

    def _follow_least(self, step: Step, now: Inputs, plus: pa.Table, minus: pa.Table) -> None:
        """The minimum of each key, and the count: computed from all rows if a minimum was removed."""
        (least,) = step.least
        (count,) = [name for name in step.table.names if name not in (*step.table.key, least)]
        present = self.warehouse.arrow(step.name)
        was, gone, new = (
            {tuple(row[name] for name in step.table.key): row for row in table.to_pylist()}
            for table in (present, minus, plus)
        )
        merged = []
        for key in {*was, *new}:
            old, out, more = was.get(key, {}), gone.get(key, {}), new.get(key, {})
            if out and out[least] == old.get(least) and (not more or more[least] > out[least]):
                tune(self.spark, self.size)
                whole = {name: self.warehouse.read(name) for name in step.inputs}
                rows = step.build(whole, self.as_of).toArrow().cast(step.table.arrow)
                break
            values = [row[least] for row in (old, more) if row]
            many = old.get(count, 0) - out.get(count, 0) + more.get(count, 0)
            merged.append({**dict(zip(step.table.key, key, strict=True)), least: min(values), count: many})
        else:
            rows = pa.Table.from_pylist(merged, schema=step.table.arrow)
        if _same(rows, present):
            self._same.add(step.name)
        else:
            self.warehouse.overwrite_arrow(step.name, rows)
        now[step.name] = rows

    # rows that name several messages

    def _follow_evidence(self, step: Step, now: Inputs) -> None:
        """A row about two messages is replaced if either has changed. A group may have gained a message that was
        not in it: all groups about a subject are replaced if one of them has, or had, a changed message.
        """
        if self.warehouse.rows(step.name) > HELD_ROWS:
            self._build_whole(step)
            return
        rows = self.build(step, now)
        made = rows if isinstance(rows, pa.Table) else rows.toArrow().cast(step.table.arrow)
        present = self.warehouse.arrow(step.name)
        hit, was_hit = _naming(made, self.changes.changed), _naming(present, self.changes.changed)
        if not pc.any(hit).as_py() and not pc.any(was_hit).as_py():
            self._same.add(step.name)
            return
        subjects = pa.concat_tables([made.filter(hit).select(_SUBJECT), present.filter(was_hit).select(_SUBJECT)])
        kept = present.filter(pc.invert(_concerned(present, was_hit, subjects)))
        self.warehouse.overwrite_arrow(
            step.name, pa.concat_tables([kept, made.filter(_concerned(made, hit, subjects))])
        )
        self.invalidated.add(step.name)


def _naming(rows: pa.Table, changed: pa.Table) -> pa.Array:
    """For each row, True if its evidence includes a changed message."""
    evidence = rows["evidence"].combine_chunks()
    owners = pc.list_parent_indices(evidence)
    each = pa.table([rows["fabric"].take(owners), pc.list_flatten(evidence)], names=ADDRESS)
    naming = owners.filter(is_in(each, changed).combine_chunks())
    return pc.is_in(pa.array(range(rows.num_rows), owners.type), value_set=naming)


def _concerned(rows: pa.Table, hit: pa.Array, subjects: pa.Table) -> pa.Array:
    """Pairs that include a changed message, and groups about one of these subjects."""
    numbered = rows.select(_SUBJECT).append_column("_row", pa.array(range(rows.num_rows), pa.int64()))
    same = numbered.join(subjects, keys=_SUBJECT, join_type="left semi")["_row"].combine_chunks()
    in_group = pc.is_in(numbered["_row"].combine_chunks(), value_set=same)
    is_pair = pc.is_in(rows["kind"].combine_chunks(), value_set=pa.array(PAIR_KINDS, pa.string()))
    return pc.if_else(is_pair, hit, in_group)


def _net(rows: pa.Table, step: Step) -> pa.Table:
    """Partial sums, one row per key, without those that cancel out."""
    sums = step.table.sums
    summed = rows.group_by(list(step.table.key)).aggregate([(name, "sum") for name in sums])
    summed = summed.rename_columns([name.removesuffix("_sum") for name in summed.column_names]).select(step.table.names)
    is_any = pc.not_equal(summed[sums[0]], 0)
    for name in sums[1:]:
        is_any = pc.or_(is_any, pc.not_equal(summed[name], 0))
    return summed.filter(is_any).cast(step.table.arrow)


def _same(one: pa.Table, other: pa.Table) -> bool:
    return sorted(map(repr, one.to_pylist())) == sorted(map(repr, other.to_pylist()))
