"""The leaf hash of a hop, recomputed from its columns by native expressions.

`dovetail.journal.layout` defines the entry byte by byte. Casting an integer to binary gives its big-endian bytes; that
needs ANSI mode off, which `session` ensures. If bytes are kept, their digest is computed from them, so that one hash
serves both the leaf and the address.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the conventional name
from pyspark.sql.types import BinaryType

from dovetail.audit.native import sha256
from dovetail.tlog.leaf import ENTRY_VERSION, NO_DIGEST

LEAF_PREFIX = b"\x00"


def leaf_hash() -> Column:
    """SHA-256 over the leaf prefix and the entry of this row; `kept_digest` must already exist."""
    digest = F.coalesce(F.col("kept_digest"), F.col("digest"), F.lit(NO_DIGEST))
    entry = F.concat(
        F.lit(LEAF_PREFIX + bytes([ENTRY_VERSION])),
        _binary(F.col("seq")),
        _binary(F.unix_micros("at")),
        F.col("message"),
        digest,
        _binary(F.coalesce(F.col("size"), F.lit(0).cast("bigint"))),
        _counted(F.col("stage"), "tinyint"),
        _counted(F.coalesce(F.col("reason"), F.lit("")), "tinyint"),
        _counted(F.coalesce(F.col("counterpart"), F.lit("")), "smallint"),
    )
    return sha256(entry)


def with_leaves(rows: DataFrame) -> DataFrame:
    """Rows of the lake with `kept_digest` (of the bytes), `leaf_hash` and `leaf_valid`.

    A row is invalid if its leaf is not the sealed one, or its digest not that of its bytes. A row that lacks an input
    of its leaf has none, and is invalid whatever its column `leaf` says.
    """
    digested = rows.withColumn("kept_digest", sha256(F.col("raw")))
    hashed = digested.withColumn("leaf_hash", leaf_hash())
    is_valid = F.coalesce(F.col("leaf") == F.substring("leaf_hash", 1, 8), F.lit(False)) & (
        F.col("raw").isNull() | F.col("kept_digest").eqNullSafe(F.col("digest"))
    )
    return hashed.select(*rows.columns, "kept_digest", "leaf_hash", is_valid.alias("leaf_valid"))


def _binary(value: Column) -> Column:
    return value.cast(BinaryType())


def _counted(text: Column, length_type: str) -> Column:
    """Length and text; an octet length over the type's signed half wraps to the same bytes."""
    return F.concat(_binary(F.octet_length(text).cast(length_type)), text.cast(BinaryType()))
