"""From bytes to fields: a table of decoders, one per fabric, each a plain generator over Arrow batches.

A decoder takes batches with `DECODER_INPUT` and yields batches with `DECODED` (swarm: the part of it that its bytes
say): one row for each row it was given. It never raises for what is in a row: bytes that do not decode give a row with
`reject`. Each distinct sequence of bytes is decoded once, ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from dovetail.lake.decoded import DECODED
from dovetail.model.hop import Relation

DECODER_INPUT = ("fabric", "digest", "raw", "size", "swarm", "work_valid")
"""`raw` may be cut to what the decoder needs; `size` is that of the whole."""

DECODED_SCHEMA: StructType = from_arrow_schema(DECODED)

Batches = Iterable[pa.RecordBatch]
Decoder = Callable[[Batches], Iterator[pa.RecordBatch]]
Row = dict[str, Any]

MAX_DETAIL_CHARS = 300


def link(parent: bytes, relation: Relation, parent_expires_us: int | None = None) -> Row:
    """One reference to an earlier message."""
    return {"parent": parent, "relation": relation.value, "parent_expires_us": parent_expires_us}


def decode_rows(batches: Batches, decode: Callable[[bytes, Row], Row]) -> Iterator[pa.RecordBatch]:
    """Decode row by row, for bytes that only a parser can read."""
    for batch in batches:
        rows = []
        for given in batch.to_pylist():
            base = {"fabric": given["fabric"], "digest": given["digest"], "size": given["size"]}
            rows.append(base | decode(given["raw"], given))
        yield pa.RecordBatch.from_pylist(rows, schema=DECODED)


def rejected(reason: str, detail: str) -> Row:
    """What a decoder gives for bytes that cannot be read."""
    return {"reject": reason, "detail": detail[:MAX_DETAIL_CHARS]}


def decoders() -> Mapping[str, Decoder]:
    """The decoder of each fabric."""
    from dovetail.audit.decode_pcp import decode_pcp
    from dovetail.audit.decode_swarm import decode_swarm
    from dovetail.audit.decode_won import decode_won

    return {"pcp": decode_pcp, "swarm": decode_swarm, "won": decode_won}
