"""The Parquet files of a table, read and written by Spark, or here where they are small.

To Spark a file is a job: it lists, plans, sends its settings round, and commits. Where the whole work is one partition
(`session.tune`) and a table has some thousand rows, that is nearly all of its cost. Such a table comes from Spark as
Arrow and is written in this process, and goes to Spark as rows.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from operator import and_
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import BinaryType, StructType

from dovetail.audit.membership_filter import Sieve
from dovetail.audit.schemas import QUARANTINE, STRING, Table
from dovetail.audit.session import is_one_partition

_T = TypeVar("_T")

MAX_LOCAL_BYTES = 1 << 20
"""Files of up to so many bytes are read here; rows of more cost more on their way to Spark than a job does."""


def read_table(spark: SparkSession, table: Table, paths: Iterable[Path], *, with_file: bool = False) -> DataFrame:
    """The rows of these files and directories, on request with the name of each row's `file`."""
    paths = list(paths)
    schema = StructType([*table.schema.fields]).add("file", STRING) if with_file else table.schema
    if not paths:
        return local_rows(spark, [], schema)
    is_one = is_one_partition(spark)
    if is_one:
        files = [file for path in paths for file in (sorted(path.glob("*.parquet")) if path.is_dir() else [path])]
        if sum(file.stat().st_size for file in files) <= MAX_LOCAL_BYTES:
            return _read_small(spark, schema, files, with_file=with_file)
    rows = spark.read.schema(table.schema).parquet(*map(str, paths))
    if with_file:
        rows = rows.select("*", F.col("_metadata.file_name").alias("file"))
    return rows.coalesce(1) if is_one else rows


def _read_small(spark: SparkSession, schema: StructType, files: list[Path], *, with_file: bool) -> DataFrame:
    wanted = to_arrow_schema(schema, timezone="UTC")
    parts = [wanted.empty_table()]
    for file in files:
        part = read_files([file], wanted)
        if with_file:
            part = part.set_column(len(wanted) - 1, "file", pa.array([file.name] * part.num_rows, pa.string()))
        parts.append(part)
    return from_arrow(spark, pa.concat_tables(parts), schema)


def find_here(
    table: Table, files: Iterable[Path], wanted: pa.Table, columns: Sequence[str] | None = None
) -> Iterator[tuple[Path, pa.Table]]:
    """Rows of a table's files whose value in the last column of `wanted`, a binary one, stands there.

    They come file by file; most files have none. By its other columns row groups are passed over, if they say of
    themselves that they have no such value.
    """
    schema = to_arrow_schema(table.schema, timezone="UTC")
    names = list(columns or schema.names)
    *others, by = wanted.column_names
    sieve = Sieve(wanted[by].combine_chunks())
    where = reduce(and_, (pc.field(name).isin(wanted[name].unique()) for name in others), pc.scalar(True))

    def find(file: Path) -> tuple[Path, pa.Table]:
        found = [pa.schema([schema.field(name) for name in names]).empty_table()]
        for fragment in ds.dataset(str(file), schema=schema, format="parquet").get_fragments():
            for group in fragment.split_by_row_group(where, schema):
                places = sieve.find(group.to_table(schema=schema, columns=[by])[by])
                if len(places):
                    found.append(group.to_table(schema=schema, columns=names).take(places))
        return file, pa.concat_tables(found)

    yield from ((file, rows) for file, rows in _each(find, files) if rows.num_rows)


def scan_here(
    table: Table, files: Iterable[Path], where: pc.Expression, by: Sequence[str], columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """Rows of a table's files for which `where` holds, a condition on the columns `by`; most files have none."""
    wanted = to_arrow_schema(table.schema, timezone="UTC")
    names = list(columns or wanted.names)

    def find(file: Path) -> pa.Table | None:
        source = ds.dataset(str(file), schema=wanted, format="parquet")
        if not source.scanner(columns=list(by), filter=where).count_rows():
            return None
        return source.to_table(columns=names, filter=where)

    yield from (rows for rows in _each(find, files) if rows is not None)


def _each(find: Callable[[Path], _T], files: Iterable[Path]) -> Iterator[_T]:
    """What is found in each file; a file is mostly one row group, which Arrow reads in one thread."""
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        yield from threads.map(find, files)


def read_here(table: Table, files: Iterable[Path], columns: Sequence[str] | None = None) -> pa.Table:
    """All rows of some small files, in this process."""
    wanted = to_arrow_schema(table.schema, timezone="UTC")
    chosen = pa.schema([wanted.field(name) for name in columns or wanted.names])
    return read_files(files, chosen)


def read_files(files: Iterable[Path], wanted: pa.Schema) -> pa.Table:
    """These columns of some files, in this process; a column that a file lacks is null there."""
    parts = [ds.dataset(str(file), schema=wanted, format="parquet").to_table() for file in files]
    return pa.concat_tables([wanted.empty_table(), *parts])


def write_here(table: Table, parts: Iterable[pa.Table], target: Path) -> None:
    """Write rows that this process has as the files of a directory, in the place of what it held."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    wanted = to_arrow_schema(table.schema, timezone="UTC")
    rows = pa.concat_tables([wanted.empty_table(), *(part.select(wanted.names).cast(wanted) for part in parts)])
    plain = [field.name for field in table.schema if not isinstance(field.dataType, BinaryType)]
    pq.write_table(rows, target / f"part-00000-{uuid.uuid4()}.zstd.parquet", compression="zstd", use_dictionary=plain)


def count_rows(directory: Path) -> int:
    """How many rows the files of a directory have, as they say themselves."""
    return sum(pq.read_metadata(path).num_rows for path in directory.glob("*.parquet"))


def has_nulls(file: Path, column: str) -> bool:
    """Whether a file has rows without a value in this column, as far as it says itself; if it does not, it may."""
    metadata = pq.read_metadata(file)
    index = metadata.schema.to_arrow_schema().get_field_index(column)
    for group in range(metadata.num_row_groups):
        known = metadata.row_group(group).column(index).statistics
        if known is None or known.null_count is None or known.null_count:
            return True
    return False


def local_rows(spark: SparkSession, rows: Sequence[Sequence[object]], schema: StructType) -> DataFrame:
    """Some rows that this process has, as Spark plans best: it sees what they are, above all that they are none."""
    return from_arrow(spark, to_arrow(rows, schema), schema)


def to_arrow(rows: Sequence[Sequence[object]], schema: StructType) -> pa.Table:
    """Some rows that this process has, as Arrow."""
    wanted = to_arrow_schema(schema, timezone="UTC")
    columns = [pa.array([row[index] for row in rows], field.type) for index, field in enumerate(wanted)]
    return pa.table(columns, schema=wanted)


def from_arrow(spark: SparkSession, table: pa.Table, schema: StructType | None = None) -> DataFrame:
    """Some rows that this process has as Arrow."""
    # in one piece: Spark takes a first piece without rows for the end
    return spark.createDataFrame(table.combine_chunks(), schema or from_arrow_schema(table.schema)).coalesce(1)


def write_table(table: Table, rows: DataFrame, target: Path) -> None:
    """Write rows as the files of a directory, in the place of what it held."""
    rows = rows.select(*table.schema.names)
    if table is QUARANTINE or not is_one_partition(rows.sparkSession):  # bytes of messages may be many
        writer = rows.write.mode("overwrite").options(**plain_columns(table.schema))
        writer.parquet(str(target))
        return
    write_here(table, [rows.toArrow()], target)


def plain_columns(schema: StructType) -> dict[str, str]:
    """Options of a Parquet writer: addresses hardly repeat, so that a dictionary of them is built for nothing."""
    names = [field.name for field in schema if isinstance(field.dataType, BinaryType)]
    return {f"parquet.enable.dictionary#{name}": "false" for name in names}
