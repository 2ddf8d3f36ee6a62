"""Rows that this process has, on their way to Spark and back."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType


def local_rows(spark: SparkSession, rows: Sequence[Sequence[object]], schema: StructType) -> DataFrame:
    """Some rows that this process has, as Spark plans best: it sees what they are, above all that they are none."""
    return from_arrow(spark, to_arrow(rows, to_arrow_schema(schema, timezone="UTC")), schema)


def to_arrow(rows: Sequence[Sequence[object]], schema: pa.Schema) -> pa.Table:
    """Some rows that this process has, as Arrow."""
    columns = [pa.array([row[index] for row in rows], field.type) for index, field in enumerate(schema)]
    return pa.table(columns, schema=schema)


def from_arrow(spark: SparkSession, table: pa.Table, schema: StructType | None = None) -> DataFrame:
    """Some rows that this process has as Arrow."""
    # in one piece: Spark takes a first piece without rows for the end, and fails where there is none
    whole = table.combine_chunks() if table.num_rows else to_arrow([], table.schema)
    return spark.createDataFrame(whole, schema or from_arrow_schema(table.schema)).coalesce(1)
