"""Decodes messages: each distinct byte sequence is decoded once, by `Fabric.read` in Spark's Python workers.

Plain generators over Arrow batches, yielding one row of `DECODED` per row of `DECODER_INPUT`. Bytes that are not a
message yield a row with `reject`. A fabric with fields at fixed offsets may read them with native Spark columns instead
(`FabricAudit.native`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from dovetail.lake.decoded import DECODED, decoded_row
from dovetail.model.fabric import Agreement, Fabric, Refused, Signed

DECODER_INPUT = ("fabric", "digest", "raw", "size", "community", "work_valid")
"""For native columns `raw` is truncated to what they read, and the work is checked before; `size` is the full size.

`community` is that of the server if its agreement was given by name, else empty.
"""
DECODED_SCHEMA: StructType = from_arrow_schema(DECODED)

VERDICT = pa.schema([("message", pa.binary()), ("valid", pa.bool_())])
VERIFY_COLUMNS = ("message", "public_key", "signer", "signed_digest", "signature", "fingerprint", "claims_valid")

MAX_DETAIL_CHARS = 300

Batches = Iterable[pa.RecordBatch]
Agreements = Mapping[str, Agreement]
"""By community, "" for all others; empty if the messages of a fabric need none."""


def decode_by(fabric: Fabric, agreements: Agreements, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Decode each row with the fabric."""
    for batch in batches:
        rows = []
        given = zip(*(batch[name].to_pylist() for name in ("digest", "raw", "size", "community")), strict=True)
        for digest, raw, size, community in given:
            read = fabric.read(raw, agreements.get(community, agreements.get("")))
            if isinstance(read, Refused):
                refused = {"reject": read.reason.value, "detail": read.detail[:MAX_DETAIL_CHARS]}
                rows.append({"fabric": fabric.name, "digest": digest, "size": size, **refused})
            else:
                rows.append(decoded_row(fabric.name, digest, size, read))
        yield pa.RecordBatch.from_pylist(rows, schema=DECODED)


def verify_by(fabric: Fabric, batches: Batches) -> Iterator[pa.RecordBatch]:
    """One verdict for each row with `VERIFY_COLUMNS`."""
    for batch in batches:
        valid = []
        for row in batch.to_pylist():
            key = row.pop("public_key")
            del row["message"]
            valid.append(row["claims_valid"] and fabric.verify(Signed(entitled=None, **row), key))
        yield pa.RecordBatch.from_arrays([batch["message"], pa.array(valid, pa.bool_())], schema=VERDICT)
