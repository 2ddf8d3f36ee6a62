"""The audit's tables, each a Delta table under one root: how they are read and written during a run.

Spark writes large tables (`spark_files`). Small ones come from Spark as Arrow and are written in this process: in Spark
even the smallest is a job. The choice depends on sizes alone (`LOCAL_ROWS`, `session.tune`), so that the work of this
process is bounded however large the lake is.

Only the holder of the lease (`lease`) writes. A run counts once its row is in `runs`; until then the next run rolls
back everything it wrote (`Warehouse.recover`).
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, WriterProperties, write_deltalake
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the conventional name

from dovetail.audit.arrow_sets import distinct, is_in
from dovetail.audit.delta import claim, open_delta, spark_claim, spark_uri, store_options, table_uri
from dovetail.audit.local_rows import from_arrow
from dovetail.audit.session import is_one_partition, read_files, tune
from dovetail.audit.spark_files import clear_staging, write_files
from dovetail.audit.state_tables import STORED
from dovetail.audit.table import Table
from dovetail.audit.tables import Run, Where, add_up, expression_of, is_among, keys_among
from dovetail.lake.location import is_url

LOCAL_ROWS = 5_000_000
"""Tables of up to this many rows are scanned in this process: 10 million addresses take about a second."""

HELD_ROWS = 1_000_000
"""Tables of up to this many rows are held in this process."""

REWRITE_ROWS = 500_000
"""Tables of up to this many rows are rewritten when rows are replaced. Spark merges into larger ones: merging with
`deltalake` gives types that Arrow's readers cannot filter by."""

LOCAL_BYTES = 1 << 20
"""Tables of up to this many bytes go to Spark as rows; larger ones cost more to transfer than a job."""

_CONFIGURATION = {
    "delta.enableDeletionVectors": "false",  # Arrow readers refuse tables that may have them
    "delta.checkpointInterval": "20",
    "delta.logRetentionDuration": "interval 36500 days",  # `vacuum` decides which versions can be read
}
_PROPERTIES = WriterProperties(compression="ZSTD", compression_level=1)
_views = itertools.count()

Rows: TypeAlias = pa.Table | DataFrame
"""Rows in this process, or rows that Spark has or will compute."""


@dataclass(slots=True)
class Warehouse:
    """The tables under `root` as the run `run` builds them; `guard` raises if the lease is lost."""

    spark: SparkSession
    root: str
    run: int = 0
    guard: Callable[[], None] = lambda: None
    _opened: dict[str, DeltaTable] = field(default_factory=dict)
    _fresh: dict[str, pa.Table] = field(default_factory=dict)

    def begin(self, run: int) -> None:
        """Mark what is appended from now on as part of this run."""
        self.run = run
        self._fresh.clear()

    def prepare(self) -> None:
        """Open the tables; create missing ones, empty."""
        for table in STORED.values():
            try:
                known = open_delta(self.root, table.name)
            except TableNotFoundError:
                configuration = dict(_CONFIGURATION)
                configuration["delta.dataSkippingStatsColumns"] = ",".join(table.skipping)
                known = DeltaTable.create(
                    table_uri(self.root, table.name),
                    table.arrow,
                    mode="ignore",
                    configuration=configuration,
                    storage_options=store_options(self.root),
                )
            self._opened[table.name] = known

    def recover(self, named: Mapping[str, int]) -> list[str]:
        """Roll back what an unfinished run has written: restore every table to its version in `named`."""
        if not is_url(self.root):
            clear_staging(self.root)
        taken_back = []
        for name, table in self._opened.items():
            wanted = named.get(name, 0)
            if name != "runs" and table.version() != wanted and not _is_restored(table, wanted):
                self.guard()
                table.restore(wanted)
                table.update_incremental()
                taken_back.append(name)
        return taken_back

    def widen(self) -> None:
        """Add the columns that are new in this version; call it after `recover`."""
        for name, known in self._opened.items():
            have = {field.name for field in known.schema().fields}
            missing = [own for own in _delta_fields(STORED[name]) if own.name not in have]
            if missing:
                self.guard()
                known.alter.add_columns(missing)

    def versions(self) -> dict[str, int]:
        """The current version of every table."""
        return {name: table.version() for name, table in self._opened.items() if name != "runs"}

    # reading

    def rows(self, name: str) -> int:
        """Number of rows of a table, from its log."""
        counts = pa.table(self._opened[name].get_add_actions(flatten=True))
        return int(pc.sum(counts["num_records"]).as_py() or 0) if counts.num_rows else 0

    def read(self, name: str) -> DataFrame:
        """A whole table on Spark, as it is now; sums are added up."""
        rows = self.take(name)
        return from_arrow(self.spark, rows, STORED[name].schema) if isinstance(rows, pa.Table) else rows

    def take(self, name: str) -> Rows:
        """Like `read`, but as Arrow if the table is small."""
        table = STORED[name]
        if is_one_partition(self.spark):
            sizes = pa.table(self._opened[name].get_add_actions())
            if (pc.sum(sizes["size_bytes"]).as_py() or 0) <= LOCAL_BYTES:
                return self.arrow(name)
        rows = self._files(name, self._opened[name].file_uris())
        if is_one_partition(self.spark):
            rows = rows.coalesce(1)
        return _added_up(rows, table)

    def _files(self, name: str, files: Collection[str]) -> DataFrame:
        """The rows of these files of a table. They are passed in because Spark would run extra jobs to list them."""
        schema = STORED[name].schema
        if not files:
            return self.spark.createDataFrame([], schema)
        return read_files(self.spark, schema, map(spark_uri, files))

    def files(self, name: str) -> int:
        """Number of files of a table."""
        return int(pa.table(self._opened[name].get_add_actions()).num_rows)

    def fresh(self, name: str) -> pa.Table:
        """The rows that this run appended to a silver table; the caller ensures that they are not too many."""
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

    def earlier(self, name: str, run: Run) -> pa.Table:
        """Rows of a small table as an earlier run left it."""
        return open_delta(self.root, name, run.versions[name]).to_pyarrow_dataset().to_table().cast(STORED[name].arrow)

    def scan(self, name: str, columns: Sequence[str], where: Where) -> pa.Table:
        """Some columns of the few rows that match `where`, of a table of any size."""
        if self.rows(name) <= LOCAL_ROWS:
            return self.arrow(name, columns, where)
        tune(self.spark, self.rows(name))
        rows = self.spark.read.format("delta").load(spark_uri(table_uri(self.root, name)))
        for one in where:
            rows = rows.where(_column_of(one))
        return rows.select(*columns).toArrow().cast(_schema_of(STORED[name], columns))

    def lookup(self, name: str, wanted: pa.Table) -> pa.Table:
        """Rows whose columns are among those of `wanted`, which are few."""
        table = STORED[name]
        if not wanted.num_rows or not self.rows(name):
            return table.arrow.empty_table()
        if self.rows(name) <= LOCAL_ROWS:
            return is_among(self._opened[name].to_pyarrow_dataset(), wanted).select(table.names).cast(table.arrow)
        tune(self.spark, self.rows(name))
        rows = self.spark.read.format("delta").load(spark_uri(table_uri(self.root, name)))
        few = from_arrow(self.spark, wanted).hint("broadcast")
        found = rows.join(few, on=wanted.column_names, how="left_semi").select(*table.names)
        return found.toArrow().cast(table.arrow)

    # writing

    def append(self, name: str, rows: Rows) -> DataFrame:
        """Append rows to a silver table as part of this run; returns them as written."""
        table = STORED[name]
        if not isinstance(rows, pa.Table) and not is_one_partition(self.spark):
            before = self._opened[name].file_uris()
            self.save(name, rows)
            return self._files(name, set(self._opened[name].file_uris()).difference(before))
        local = rows if isinstance(rows, pa.Table) else rows.toArrow()
        local = local.append_column("run", pa.array([self.run] * local.num_rows, pa.int64()))
        local = local.select(table.names).cast(table.arrow)
        self.append_arrow(name, local)
        self._fresh[name] = pa.concat_tables([self._fresh[name], local]) if name in self._fresh else local
        return from_arrow(self.spark, local, table.schema)

    def save(self, name: str, rows: DataFrame) -> None:
        """Append rows to a table without collecting them in this process, however few they are."""
        self._fresh.pop(name, None)
        if "run" in STORED[name].names and "run" not in rows.columns:
            rows = rows.withColumn("run", F.lit(self.run).cast("bigint"))
        self._save(name, rows.select(*STORED[name].names), "append")

    def append_arrow(self, name: str, rows: pa.Table) -> None:
        """Append rows of this process."""
        if rows.num_rows:
            self._commit(name, rows, "append")

    def overwrite(self, name: str, rows: Rows) -> None:
        """Let a table have these rows and no others."""
        table = STORED[name]
        if isinstance(rows, pa.Table):
            self.overwrite_arrow(name, rows)
        elif is_one_partition(self.spark):
            self.overwrite_arrow(name, rows.select(*table.names).toArrow().cast(table.arrow))
        else:
            self._save(name, rows.select(*table.names), "overwrite")

    def overwrite_arrow(self, name: str, rows: pa.Table) -> None:
        """The same with rows of this process; no commit if an empty table stays empty."""
        if rows.num_rows or self.rows(name):
            self._commit(name, rows, "overwrite")

    def clear(self, names: Collection[str]) -> None:
        """Drop all rows of these tables, in the versions from now on."""
        for name in names:
            self._fresh.pop(name, None)
            self.overwrite_arrow(name, STORED[name].arrow.empty_table())

    def replace(self, name: str, rows: Rows, keys: pa.Table) -> None:
        """Replace all rows that have one of these keys with `rows`, in one commit; append them if none has.

        The source of the merge has both: markers with the keys, which delete, and the new rows, whose merge keys are
        null next to their own columns, so that nothing matches them.
        """
        table = STORED[name]
        if isinstance(rows, DataFrame) and is_one_partition(self.spark):
            rows = rows.select(*table.names).toArrow()
        if isinstance(rows, pa.Table):
            rows = rows.select(table.names).cast(table.arrow)
        present = self.rows(name)
        is_here = isinstance(rows, pa.Table) and present <= LOCAL_ROWS
        keys = self._present_keys(name, keys) if is_here and keys.num_rows else keys
        if not keys.num_rows or not present:
            if isinstance(rows, pa.Table):
                self.append_arrow(name, rows)
            else:
                self.save(name, rows)
            return
        if isinstance(rows, pa.Table) and present <= REWRITE_ROWS:
            known = self.arrow(name)
            kept = known.filter(pc.invert(is_in(without_nulls(known.select(keys.column_names)), keys)))
            self._commit(name, pa.concat_tables([kept, rows]), "overwrite")
            return
        tune(self.spark, present)
        self.guard()
        new = from_arrow(self.spark, rows, table.schema) if isinstance(rows, pa.Table) else rows.select(*table.names)
        source = _marked(new, from_arrow(self.spark, _renamed(keys)), table)
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

    def _present_keys(self, name: str, keys: pa.Table) -> pa.Table:
        """The keys that occur in the table."""
        found = keys_among(self._opened[name].to_pyarrow_dataset(), keys, keys.column_names)
        about_none = keys.filter(pc.equal(keys.column(keys.num_columns - 1), b""))  # rows without it may exist
        return distinct(about_none, found.cast(keys.schema))

    def expire(self, name: str, column: str, until: str, moment: dt.datetime, keys: Sequence[str]) -> pa.Table:
        """Set a column to false where it is true and the time in another has passed; returns the keys of those rows."""
        over = distinct(self.scan(name, keys, ((column, "=", True), (until, "<=", moment))))
        if not over.num_rows:
            return over
        self.guard()
        text = moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
        if self.rows(name) <= REWRITE_ROWS:
            rows = self.arrow(name)
            is_over = pc.fill_null(pc.less_equal(rows[until], pa.scalar(moment, rows[until].type)), False)
            index = rows.schema.get_field_index(column)
            changed = pc.if_else(is_over, pa.scalar(False), rows[column])
            self._commit(name, rows.set_column(index, rows.schema.field(index), changed), "overwrite")
            return over
        where = f"{column} AND {until} <= TIMESTAMP '{text}Z'"
        self.spark.sql(f"UPDATE delta.`{spark_uri(table_uri(self.root, name))}` SET {column} = false WHERE {where}")  # noqa: S608
        self._opened[name].update_incremental()
        return over

    def _commit(self, name: str, rows: pa.Table, mode: Any) -> None:
        self.guard()
        delta = self._opened[name]
        stored = pa.schema(delta.schema().to_arrow())  # another version may have described the columns differently
        rows = rows.cast(stored)
        write_deltalake(delta, rows, mode=mode, writer_properties=_PROPERTIES, commit_properties=claim(delta))
        delta.update_incremental()

    def _save(self, name: str, rows: DataFrame, mode: str) -> None:
        self.guard()
        table = self._opened[name]
        if is_url(self.root):
            uri = spark_uri(table_uri(self.root, name))
            rows.write.format("delta").mode(mode).options(**spark_claim(table)).save(uri)
        else:
            files = write_files(self.root, STORED[name], rows)
            self.guard()
            if files or mode == "overwrite":
                table.create_write_transaction(files, mode, table.schema(), commit_properties=claim(table))
        table.update_incremental()


def _is_restored(table: DeltaTable, version: int) -> bool:
    """True if the newest commit already restored the table to this version."""
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


def without_nulls(keys: pa.Table) -> pa.Table:
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
