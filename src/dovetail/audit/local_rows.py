"""Converts rows between this process and Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from dovetail.audit.session import is_one_partition


def local_rows(spark: SparkSession, rows: Sequence[Sequence[object]], schema: StructType) -> DataFrame:
    """Local rows as a DataFrame that Spark plans best: it sees the values, above all that there are none."""
    return from_arrow(spark, to_arrow(rows, to_arrow_schema(schema, timezone="UTC")), schema)


def to_arrow(rows: Sequence[Sequence[object]], schema: pa.Schema) -> pa.Table:
    """Local rows as Arrow."""
    columns = [pa.array([row[index] for row in rows], field.type) for index, field in enumerate(schema)]
    return pa.table(columns, schema=schema)


def map_batches(
    rows: DataFrame, function: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: pa.Schema
) -> pa.Table | DataFrame:
    """Apply a function to rows: here if the work is small, because a worker costs more; else in Spark's workers."""
    if is_one_partition(rows.sparkSession):
        return pa.Table.from_batches(function(rows.toArrow().to_batches()), schema)
    return rows.mapInArrow(function, from_arrow_schema(schema))


def from_arrow(spark: SparkSession, table: pa.Table, schema: StructType | None = None) -> DataFrame:
    """A local Arrow table as a DataFrame."""
    # in one chunk: Spark takes an empty first chunk for the end, and fails if there is none
    whole = table.combine_chunks() if table.num_rows else to_arrow([], table.schema)
    return spark.createDataFrame(whole, schema or from_arrow_schema(table.schema)).coalesce(1)
