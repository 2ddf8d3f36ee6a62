"""Verifying won signatures: each message once, as soon as its signer's key is known."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from dovetail.audit.decode import Batches
from dovetail.won.signing import SIGNATURE_DOMAIN, PublicKey

VERDICT = pa.schema([("message", pa.binary()), ("valid", pa.bool_())])
VERDICT_SCHEMA: StructType = from_arrow_schema(VERDICT)
VERIFY_COLUMNS = ("message", "public_key", "signed_digest", "signature", "claims_valid")
_CACHED_KEYS = 4096


def verify_signatures(batches: Batches) -> Iterator[pa.RecordBatch]:
    """One verdict per message, from batches with `VERIFY_COLUMNS`."""
    for batch in batches:
        valid = [
            bool(claims) and signature is not None and _verifies(key, signature, digest)
            for key, signature, digest, claims in zip(
                batch.column("public_key").to_pylist(),
                batch.column("signature").to_pylist(),
                batch.column("signed_digest").to_pylist(),
                batch.column("claims_valid").to_pylist(),
                strict=True,
            )
        ]
        yield pa.RecordBatch.from_arrays([batch.column("message"), pa.array(valid, pa.bool_())], schema=VERDICT)


def _verifies(key: bytes, signature: bytes, digest: bytes) -> bool:
    public = _public_key(key)
    return public is not None and public.verifies(signature, SIGNATURE_DOMAIN + digest)


@lru_cache(maxsize=_CACHED_KEYS)
def _public_key(key: bytes) -> PublicKey | None:
    try:
        return PublicKey(key)
    except ValueError:
        return None
