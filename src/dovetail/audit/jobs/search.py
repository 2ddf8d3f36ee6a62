"""Looking for the few rows of large tables that are asked for: in this process, or on Spark if the rows are very many.

Files are looked through by columns: first only the one that is asked for, to see which files hold any such row, then
those files. No job of Spark is planned for it, so that it costs what reading that column does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from dovetail.audit.schemas import Table
from dovetail.audit.session import tune
from dovetail.audit.store import Store
from dovetail.audit.tablefiles import find_here, from_arrow, read_table

MAX_HERE = 1_000_000_000
"""Files of up to so many rows are looked through in this process. It reads one column of them; Spark would read all."""


@dataclass(frozen=True, slots=True)
class Search:
    """Looks for rows whose columns are among those of `wanted`; of its columns the last one tells rows best apart."""

    spark: SparkSession
    store: Store
    rows: int
    """What the session is tuned to."""

    def take(self, into: Table, files: Sequence[Path], wanted: pa.Table) -> pa.Table:
        """Rows of these files with the columns of `into`, where they stay for a while if Spark has to look."""
        if not wanted.num_rows:
            files = []
        if (many := count(files)) > MAX_HERE:
            tune(self.spark, many)
            rows = among(read_table(self.spark, into, files), from_arrow(self.spark, wanted), wanted.column_names)
            self.store.write_state(into, rows)
            tune(self.spark, self.rows)
            return self.store.read_rows(into)
        found = [rows for _, rows in find_here(into, files, wanted)]
        empty = to_arrow_schema(into.schema, timezone="UTC").empty_table()
        # a row of another fabric with the same bytes is left out here
        return pick(pa.concat_tables([empty, *found]), wanted)

    def holding(self, table: Table, files: Sequence[Path], wanted: pa.Table) -> set[str]:
        """The names of those files that hold such a row."""
        if not wanted.num_rows:
            return set()
        if (many := count(files)) > MAX_HERE:
            tune(self.spark, many)
            present = read_table(self.spark, table, files, with_file=True)
            hits = among(present, from_arrow(self.spark, wanted), wanted.column_names)
            names = {row["file"] for row in hits.select("file").distinct().collect()}
            tune(self.spark, self.rows)
            return names
        return {file.name for file, _ in find_here(table, files, wanted, wanted.column_names[-1:])}


def count(files: Iterable[Path]) -> int:
    """How many rows these files have, as they say themselves."""
    return sum(map(_count_one, files))


@lru_cache(maxsize=1 << 16)
def _count_one(file: Path) -> int:
    """A file is written once, under a name of its own, and looked through several times in a run."""
    return int(pq.read_metadata(file).num_rows)


def among(rows: DataFrame, wanted: DataFrame, on: Sequence[str], how: str = "left_semi") -> DataFrame:
    """Rows whose columns are among those of `wanted`; those go to the rows, not the rows to them."""
    return rows.join(wanted.select(*on).hint("broadcast"), on=list(on), how=how)


def pick(rows: pa.Table, wanted: pa.Table, *, others: bool = False) -> pa.Table:
    """Rows of a table in memory whose columns are among those of `wanted`, or all others."""
    *first, last = wanted.column_names
    if not rows.num_rows:
        return rows
    if not first:
        mask = pc.is_in(rows[last], value_set=_values(wanted, last))
    else:
        masks = [
            pc.and_kleene(
                pc.equal(rows[first[0]], one), pc.is_in(rows[last], value_set=_values(_of(wanted, first[0], one), last))
            )
            for one in wanted[first[0]].unique()
        ]
        mask = reduce(pc.or_kleene, masks, pa.array([False] * rows.num_rows))
    mask = pc.fill_null(mask, False)
    return rows.filter(pc.invert(mask) if others else mask)


def distinct(*tables: pa.Table) -> pa.Table:
    """The rows of all these tables, each once; the names are those of the first."""
    names = tables[0].column_names
    each = [table.select(list(range(len(names)))).rename_columns(names) for table in tables]
    return pa.concat_tables(each).group_by(names).aggregate([]).select(names)


def _of(rows: pa.Table, column: str, value: pa.Scalar) -> pa.Table:
    return rows.filter(pc.equal(rows[column], value))


def _values(rows: pa.Table, column: str) -> pa.Array:
    return rows[column].combine_chunks()
