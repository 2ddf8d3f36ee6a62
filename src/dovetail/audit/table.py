"""The definition of a table of the audit: columns with their meaning, its key, and how to read its rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

STRING, BINARY, LONG, BOOLEAN = pa.string(), pa.binary(), pa.int64(), pa.bool_()
TIMESTAMP = pa.timestamp("us", tz="UTC")
STRINGS, BINARIES = pa.list_(pa.string()), pa.list_(pa.binary())

Layer = Literal["log", "silver", "gold", "state"]
"""What the audit did; what it read; its answers; what it keeps for its own use."""


def column(name: str, kind: pa.DataType, sentence: str) -> pa.Field:
    """A column with its meaning."""
    return pa.field(name, kind, metadata={"comment": sentence})


@dataclass(frozen=True, slots=True)
class Table:
    """A table written by the audit: `key` are the columns that identify a row.

    `skipping` are the columns whose minimum and maximum are known for each file, so that files can be skipped. The rows
    of a table with `sums` are partial, some of them negative: readers add those columns up by `key`.
    """

    name: str
    layer: Layer
    sentence: str
    key: tuple[str, ...]
    arrow: pa.Schema
    skipping: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()

    @property
    def schema(self) -> StructType:
        """The schema for Spark."""
        return _spark_schema(self.arrow)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        names: list[str] = self.arrow.names
        return names


@cache
def _spark_schema(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructField, StructType

    fields = from_arrow_schema(schema).fields
    comments = [{"comment": (own.metadata or {}).get(b"comment", b"").decode()} for own in schema]
    return StructType([StructField(f.name, f.dataType, True, c) for f, c in zip(fields, comments, strict=True)])
