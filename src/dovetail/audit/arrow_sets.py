"""Set operations on Arrow tables in this process: semi-join, anti-join, distinct."""

from __future__ import annotations

from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc


def pick(rows: pa.Table, wanted: pa.Table, *, others: bool = False) -> pa.Table:
    """Rows of a table in memory whose columns are among those of `wanted`, or all others."""
    if not rows.num_rows:
        return rows
    mask = is_in(rows, wanted)
    return rows.filter(pc.invert(mask) if others else mask)


def is_in(rows: pa.Table, wanted: pa.Table) -> pa.Array:
    """For each row, True if its columns are among those of `wanted`."""
    *first, last = wanted.column_names
    if not first:
        mask = pc.is_in(rows[last], value_set=_values(wanted, last))
    else:
        masks = [
            pc.and_kleene(
                pc.equal(rows[first[0]], one), pc.is_in(rows[last], value_set=_values(_of(wanted, first[0], one), last))
            )
            for one in wanted[first[0]].unique()
        ]
        mask = reduce(pc.or_kleene, masks, pa.array([False] * rows.num_rows, pa.bool_()))
    return pc.fill_null(mask, False)


def distinct(*tables: pa.Table) -> pa.Table:
    """The distinct rows of all these tables; the column names are those of the first."""
    names = tables[0].column_names
    each = [table.select(list(range(len(names)))).rename_columns(names) for table in tables]
    return pa.concat_tables(each).group_by(names).aggregate([]).select(names)


def _of(rows: pa.Table, column: str, value: pa.Scalar) -> pa.Table:
    return rows.filter(pc.equal(rows[column], value))


def _values(rows: pa.Table, column: str) -> pa.Array:
    return rows[column].combine_chunks()
