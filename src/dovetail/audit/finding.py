"""Findings after an increment: those about changed rows are recomputed, all others stay.

A finding follows from one row of one table (`checks`), so findings change when rows do. Time alone adds more: rows
without an outcome after the loss timeout, and references to messages that have since expired.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from dovetail.audit.arrow_sets import distinct, is_in, pick
from dovetail.audit.changeset import ADDRESS
from dovetail.audit.checks import every_check, findings
from dovetail.audit.increment import Increment
from dovetail.audit.refresh import Inputs
from dovetail.audit.schemas import FINDINGS
from dovetail.audit.session import tune
from dovetail.audit.state_tables import STORED
from dovetail.audit.transforms.holdings import HOLDINGS
from dovetail.audit.warehouse import HELD_ROWS, Rows, Warehouse
from dovetail.model.times import to_datetime

FOUND_IN = ("integrity", "hops", "holdings", "quarantine", "messages", "deliveries", "chains", "gaps", "forks")
"""The tables that findings come from."""

_WAITING = {"deliveries": "accepted", "chains": "begun"}
"""Rows of these tables are findings only after the loss timeout, counted from this time."""


def find_all(warehouse: Warehouse, *, overdue_us: int) -> None:
    """Recompute all findings."""
    tables = {name: warehouse.read(name) for name in FOUND_IN if warehouse.rows(name) or name == HOLDINGS.name}
    found = findings(warehouse.spark, tables, overdue_before_us=overdue_us)
    warehouse.overwrite("findings", found.coalesce(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Recomputes the findings about what an increment has changed; rows that began before `overdue_us` are overdue.

    `judged` are the new rows of `messages`; `others` are the tables rebuilt outside the increment.
    """

    increment: Increment
    judged: pa.Table
    others: frozenset[str]
    was_overdue_us: int
    overdue_us: int

    def find(self) -> None:
        """Bring the findings up to date with the other tables."""
        warehouse = self.increment.warehouse
        if warehouse.rows("findings") > HELD_ROWS:
            tune(self.increment.spark, self.increment.size)
            find_all(warehouse, overdue_us=self.overdue_us)
            return
        recomputed = sorted((self.increment.invalidated | self.others) & set(FOUND_IN))
        tune(self.increment.spark, max(self.increment.work(), *(warehouse.rows(name) for name in recomputed), 0))
        tables: dict[str, Rows] = {name: warehouse.read(name) for name in recomputed}
        concerned: dict[str, pa.Table] = {}
        for name, rows, addresses in self._changed():
            if name not in recomputed:
                tables[name], concerned[name] = rows, addresses
        for name in ("hops", "quarantine"):
            columns = [column for column in STORED[name].names if column != "bytes"]
            tables[name] = warehouse.scan(name, columns, (("run", "=", warehouse.run),))
        given = {name: rows for name, rows in tables.items() if not isinstance(rows, pa.Table) or rows.num_rows}
        if "messages" in given:
            given[HOLDINGS.name] = self._holdings(concerned)
        present = warehouse.arrow("findings")
        kept = present.filter(pc.invert(_is_about(present, concerned, recomputed)))
        frames = Inputs(self.increment.spark, given)
        made = findings(self.increment.spark, frames, overdue_before_us=self.overdue_us).toArrow().cast(FINDINGS.arrow)
        if kept.num_rows == present.num_rows:
            warehouse.append_arrow("findings", made)
        else:
            warehouse.overwrite_arrow("findings", pa.concat_tables([kept, made]))

    def _changed(self) -> Iterator[tuple[str, Rows, pa.Table]]:
        """By table, the rows that may be findings now, and the messages whose findings there are all recomputed."""
        changes, made, warehouse = self.increment.changes, self.increment.made, self.increment.warehouse
        late = pick(self.judged, changes.changed, others=True)
        yield (
            "messages",
            pa.concat_tables([changes.own_messages, late]),
            distinct(changes.changed, late.select(ADDRESS)),
        )
        for name, column in _WAITING.items():
            since, until = to_datetime(self.was_overdue_us), to_datetime(self.overdue_us)
            over = warehouse.scan(name, ADDRESS, ((column, ">=", since), (column, "<", until)))
            aged = pick(distinct(over), changes.linked, others=True)
            yield name, self._with(name, made.get(name), aged), distinct(changes.linked, aged)
        expired = self.increment.expired
        more = pick(expired, changes.children, others=True)
        children = distinct(changes.children, more).rename_columns(ADDRESS)
        yield "gaps", self._with("gaps", made.get("gaps"), more), children

    def _with(self, name: str, rows: Rows | None, more: pa.Table) -> Rows:
        """New rows, and those of a table with these keys."""
        found = self.increment.warehouse.lookup(name, more)
        if rows is None or isinstance(rows, pa.Table):
            return found if rows is None else pa.concat_tables([rows, found])
        return rows.unionByName(Inputs(self.increment.spark, {name: found})[name]) if found.num_rows else rows

    def _holdings(self, concerned: dict[str, pa.Table]) -> Rows:
        """The current holdings of the messages in question."""
        if "messages" not in concerned:
            return self.increment.warehouse.read(HOLDINGS.name)
        late = pick(concerned["messages"], self.increment.changes.changed, others=True)
        return self._with(HOLDINGS.name, self.increment.made.get(HOLDINGS.name), late)


def _is_about(present: pa.Table, concerned: dict[str, pa.Table], recomputed: list[str]) -> pa.Array:
    """For each finding, True if it is recomputed."""
    by_table: dict[str, list[str]] = {}
    for check in every_check().values():
        by_table.setdefault(check.table, []).append(check.id)
    checks = pa.array([check for name in recomputed for check in by_table.get(name, [])], pa.string())
    mask = pc.is_in(present["check"], value_set=checks)
    for name, addresses in concerned.items():
        of_table = pc.is_in(present["check"], value_set=pa.array(by_table[name], pa.string()))
        mask = pc.or_(mask, pc.and_(of_table, is_in(present.select(ADDRESS), addresses)))
    return mask
