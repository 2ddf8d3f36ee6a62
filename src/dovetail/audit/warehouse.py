"""The audit's tables, each a Delta table under one root: how they are read and written while a run is under way.

Spark writes what is large. What is small comes from Spark as Arrow, and `deltalake` commits it in this process: to
Spark every commit is several jobs, whatever its size. Both write the same format, and which of them does is decided by
sizes alone (`LOCAL_ROWS`, `session.tune`), so that the work of this process has a bound however large the lake is.

Only whoever holds the lease (`lease`) writes. A run counts from the moment that its row is in `runs`; until then
everything here is what the next run takes back (`Warehouse.recover`).
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, WriterProperties, write_deltalake
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by

from dovetail.audit.arrow_sets import is_in
from dovetail.audit.local_rows import from_arrow
from dovetail.audit.session import is_one_partition, tune
from dovetail.audit.state_tables import STORED
from dovetail.audit.table import Table
from dovetail.audit.tables import Where, add_up, expression_of, is_among, table_uri

LOCAL_ROWS = 1_000_000
"""Tables of up to so many rows are looked through in this process."""

REWRITE_ROWS = 200_000
"""Tables of up to so many rows are written anew where rows of them are replaced. Larger ones are merged into by Spark:
what `deltalake` merges has types that Arrow's readers cannot filter by."""

LOCAL_BYTES = 1 << 20
"""Tables of up to so many bytes go to Spark as rows; more of them cost more on their way than a job does."""

_CONFIGURATION = {
    "delta.enableDeletionVectors": "false",  # Arrow readers refuse tables that may have some
    "delta.checkpointInterval": "20",
    "delta.logRetentionDuration": "interval 36500 days",  # `vacuum` decides which versions can be read
}
_PROPERTIES = WriterProperties(compression="ZSTD", compression_level=1)
_views = itertools.count()


@dataclass(slots=True)
class Warehouse:
    """The tables under `root` as the run `run` is making them; `guard` raises where the lease is lost."""

    spark: SparkSession
    root: str
    run: int = 0
    guard: Callable[[], None] = lambda: None
    _opened: dict[str, DeltaTable] = field(default_factory=dict)
    _fresh: dict[str, pa.Table] = field(default_factory=dict)

    def begin(self, run: int) -> None:
        """What is appended from now on is of this run."""
        self.run = run
        self._fresh.clear()

    def prepare(self) -> None:
        """Make the tables that are not there, empty; add columns that a newer version has."""
        for table in STORED.values():
            uri = table_uri(self.root, table.name)
            try:
                known = DeltaTable(uri)
            except TableNotFoundError:
                configuration = dict(_CONFIGURATION)
                configuration["delta.dataSkippingStatsColumns"] = ",".join(table.skipping)
                known = DeltaTable.create(uri, table.arrow, mode="ignore", configuration=configuration)
            have = {field.name for field in known.schema().fields}
            missing = [own for own in _delta_fields(table) if own.name not in have]
            if missing:
                known.alter.add_columns(missing)
            self._opened[table.name] = known

    def recover(self, named: Mapping[str, int]) -> list[str]:
        """Take back what a run that did not end has written: every table is again at its version in `named`."""
        taken_back = []
        for name, table in self._opened.items():
            wanted = named.get(name, 0)
            if name != "runs" and table.version() != wanted and not _is_restored(table, wanted):
                self.guard()
                table.restore(wanted)
                table.update_incremental()
                taken_back.append(name)
        return taken_back

    def versions(self) -> dict[str, int]:
        """The version of every table now."""
        return {name: table.version() for name, table in self._opened.items() if name != "runs"}

    # reading

    def rows(self, name: str) -> int:
        """How many rows a table has, as its log says."""
        counts = pa.table(self._opened[name].get_add_actions(flatten=True))
        return int(pc.sum(counts["num_records"]).as_py() or 0) if counts.num_rows else 0

    def read(self, name: str) -> DataFrame:
        """A whole table on Spark, as it is now; sums are added up."""
        table = STORED[name]
        if is_one_partition(self.spark):
            sizes = pa.table(self._opened[name].get_add_actions())
            if (pc.sum(sizes["size_bytes"]).as_py() or 0) <= LOCAL_BYTES:
                return from_arrow(self.spark, self.arrow(name), table.schema)
        rows = self.spark.read.format("delta").load(spark_uri(table_uri(self.root, name))).select(*table.names)
        if is_one_partition(self.spark):
            rows = rows.coalesce(1)
        return _added_up(rows, table)

    def files(self, name: str) -> int:
        """In how many files a table lies."""
        return int(pa.table(self._opened[name].get_add_actions()).num_rows)

    def fresh(self, name: str) -> pa.Table:
        """The rows that this run appended to a silver table; the caller knows that they are not too many."""
        if name not in self._fresh:
            self._fresh[name] = self.scan(name, STORED[name].names, (("run", "=", self.run),))
        return self._fresh[name]

    def arrow(self, name: str, columns: Sequence[str] | None = None, where: Where = ()) -> pa.Table:
        """Rows of a small table, in this process."""
        table = STORED[name]
        source = self._opened[name].to_pyarrow_dataset()
        names = list(columns or table.names)
        rows = source.to_table(names, filter=expression_of(where)).cast(_schema_of(table, names))
        return add_up(rows, table) if columns is None else rows

    def scan(self, name: str, columns: Sequence[str], where: Where) -> pa.Table:
        """Some columns of the rows for which `where` holds: few, of a table of any size."""
        if self.rows(name) <= LOCAL_ROWS:
            return self.arrow(name, columns, where)
        tune(self.spark, self.rows(name))
        rows = self.spark.read.format("delta").load(spark_uri(table_uri(self.root, name)))
        for one in where:
            rows = rows.where(_column_of(one))
        return rows.select(*columns).toArrow().cast(_schema_of(STORED[name], columns))

    def lookup(self, name: str, wanted: pa.Table, *, since: tuple[str, Any] | None = None) -> pa.Table:
        """Rows whose columns are among those of `wanted`, which are few; files that end before `since` are left out."""
        table = STORED[name]
        if not wanted.num_rows or not self.rows(name):
            return table.arrow.empty_table()
        bound: Where = () if since is None else ((since[0], ">=", since[1]),)
        if self.rows(name) <= LOCAL_ROWS:
            return (
                is_among(self._opened[name].to_pyarrow_dataset(), wanted, bound).select(table.names).cast(table.arrow)
            )
        tune(self.spark, self.rows(name))
        rows = self.spark.read.format("delta").load(spark_uri(table_uri(self.root, name)))
        for one in bound:
            rows = rows.where(_column_of(one))
        few = from_arrow(self.spark, wanted).hint("broadcast")
        found = rows.join(few, on=wanted.column_names, how="left_semi").select(*table.names)
        return found.toArrow().cast(table.arrow)

    # writing

    def append(self, name: str, rows: DataFrame) -> DataFrame:
        """Add rows to a table; they are given back as they were written."""
        table = STORED[name]
        if "run" in table.names and "run" not in rows.columns:
            rows = rows.withColumn("run", F.lit(self.run).cast("bigint"))
        rows = rows.select(*table.names)
        if is_one_partition(self.spark):
            local = rows.toArrow().cast(table.arrow)
            self.append_arrow(name, local)
            if "run" in table.names:
                self._fresh[name] = local
            return from_arrow(self.spark, local, table.schema)
        self.save(name, rows)
        return self.read(name).where(F.col("run") == self.run) if "run" in table.names else rows

    def save(self, name: str, rows: DataFrame) -> None:
        """Add rows to a table without letting them pass through this process, however few they are."""
        if "run" in STORED[name].names and "run" not in rows.columns:
            rows = rows.withColumn("run", F.lit(self.run).cast("bigint"))
        self._save(name, rows.select(*STORED[name].names), "append")

    def append_arrow(self, name: str, rows: pa.Table) -> None:
        """Add rows that this process has."""
        if rows.num_rows:
            self._commit(name, rows, "append")

    def overwrite(self, name: str, rows: DataFrame) -> None:
        """Let a table have these rows and no others."""
        table = STORED[name]
        rows = rows.select(*table.names)
        if is_one_partition(self.spark):
            self.overwrite_arrow(name, rows.toArrow().cast(table.arrow))
        else:
            self._save(name, rows, "overwrite")

    def overwrite_arrow(self, name: str, rows: pa.Table) -> None:
        """The same with rows that this process has; no commit where an empty table stays empty."""
        if rows.num_rows or self.rows(name):
            self._commit(name, rows, "overwrite")

    def replace(self, name: str, rows: DataFrame, keys: pa.Table) -> None:
        """Put `rows` in the place of all rows that have one of these keys, in one commit.

        The source of the merge has both: markers with the keys, which delete, and the new rows, whose keys are null
        beside their own columns, so that nothing matches them.
        """
        if not keys.num_rows:
            self.append(name, rows)
            return
        table = STORED[name]
        if self.rows(name) <= REWRITE_ROWS and is_one_partition(self.spark):
            made = rows.select(*table.names).toArrow().cast(table.arrow)
            present = self.arrow(name)
            kept = present.filter(pc.invert(is_in(_without_nulls(present.select(keys.column_names)), keys)))
            self._commit(name, pa.concat_tables([kept, made]), "overwrite")
            return
        tune(self.spark, self.rows(name))
        self.guard()
        source = _marked(rows.select(*table.names), from_arrow(self.spark, _renamed(keys)), table)
        view = f"dovetail_merge_{next(_views)}"
        source.localCheckpoint().createOrReplaceTempView(view)
        names = ", ".join(f"`{column}`" for column in table.names)
        values = ", ".join(f"s.`{column}`" for column in table.names)
        self.spark.sql(
            f"MERGE INTO delta.`{spark_uri(table_uri(self.root, name))}` t USING {view} s ON {_matches(keys)} "  # noqa: S608
            f"WHEN MATCHED THEN DELETE WHEN NOT MATCHED AND s._is_new THEN INSERT ({names}) VALUES ({values})"
        )
        self.spark.catalog.dropTempView(view)
        self._opened[name].update_incremental()

    def expire(self, name: str, column: str, until: str, moment: dt.datetime) -> None:
        """Let a column be false where it is true and the time in another is over."""
        over = self.scan(name, [until], ((column, "=", True), (until, "<=", moment)))
        if not over.num_rows:
            return
        self.guard()
        text = moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
        if self.rows(name) <= REWRITE_ROWS:
            rows = self.arrow(name)
            is_over = pc.fill_null(pc.less_equal(rows[until], pa.scalar(moment, rows[until].type)), False)
            index = rows.schema.get_field_index(column)
            changed = pc.if_else(is_over, pa.scalar(False), rows[column])
            self._commit(name, rows.set_column(index, rows.schema.field(index), changed), "overwrite")
            return
        where = f"{column} AND {until} <= TIMESTAMP '{text}Z'"
        self.spark.sql(f"UPDATE delta.`{spark_uri(table_uri(self.root, name))}` SET {column} = false WHERE {where}")  # noqa: S608
        self._opened[name].update_incremental()

    def _commit(self, name: str, rows: pa.Table, mode: Any) -> None:
        self.guard()
        delta = self._opened[name]
        write_deltalake(delta, rows, mode=mode, writer_properties=_PROPERTIES)
        delta.update_incremental()

    def _save(self, name: str, rows: DataFrame, mode: str) -> None:
        self.guard()
        rows.write.format("delta").mode(mode).save(spark_uri(table_uri(self.root, name)))
        self._opened[name].update_incremental()


def spark_uri(uri: str) -> str:
    """Where Spark finds what others find under `s3:`."""
    return f"s3a{uri[2:]}" if uri.startswith("s3:") else uri


def _is_restored(table: DeltaTable, version: int) -> bool:
    """Whether the newest commit took the table back to this version already."""
    (newest,) = table.history(1)
    return newest["operation"] == "RESTORE" and str(newest.get("operationParameters", {}).get("version")) == str(
        version
    )


def _added_up(rows: DataFrame, table: Table) -> DataFrame:
    if not table.sums:
        return rows
    summed = rows.groupBy(*table.key).agg(*(F.sum(name).alias(name) for name in table.sums))
    return summed.where(F.col(table.sums[0]) > 0).select(*table.names)


def _marked(rows: DataFrame, keys: DataFrame, table: Table) -> DataFrame:
    """Keys to delete by, and rows to insert."""
    nothing = [F.lit(None).cast(own.dataType).alias(own.name) for own in table.schema]
    markers = keys.select(*nothing, *keys.columns, F.lit(False).alias("_is_new"))
    no_keys = [F.lit(None).cast(own.dataType).alias(own.name) for own in keys.schema]
    return markers.unionByName(rows.select("*", *no_keys, F.lit(True).alias("_is_new")))


def _without_nulls(keys: pa.Table) -> pa.Table:
    """A key that is null in the table is empty in keys."""
    columns = [pc.fill_null(column, b"") if pa.types.is_binary(column.type) else column for column in keys.columns]
    return pa.table(columns, names=keys.column_names)


def _renamed(keys: pa.Table) -> pa.Table:
    return keys.rename_columns([f"_{name}" for name in keys.column_names])


def _matches(keys: pa.Table) -> str:
    """A key that is null in the table is empty here."""
    return " AND ".join(
        f"coalesce(t.{own.name}, X'') = s._{own.name}"
        if pa.types.is_binary(own.type)
        else f"t.{own.name} = s._{own.name}"
        for own in keys.schema
    )


def _schema_of(table: Table, names: Sequence[str]) -> pa.Schema:
    return pa.schema([table.arrow.field(name) for name in names])


def _delta_fields(table: Table) -> list[Any]:
    from deltalake import Schema

    return list(Schema.from_arrow(table.arrow).fields)


def _column_of(one: tuple[str, str, Any]) -> Column:
    name, operator, value = one
    column = F.col(name)
    if operator == "in":
        return column.isin(*value)
    compare = {"=": column == value, ">": column > value, ">=": column >= value, "<": column < value}
    chosen: Column = compare.get(operator, column <= value)
    return chosen
