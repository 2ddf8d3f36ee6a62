"""The columns of sealed files, and the leaf hashes of rows: a row has everything that its leaf entry commits to."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from dovetail.model.errors import JournalDamaged
from dovetail.model.hop import REASONS, STAGES, Reason, Stage
from dovetail.tlog.leaf import NO_DIGEST, encode_tail, hash_run

LAKE_SCHEMA = pa.schema(
    [
        pa.field("server", pa.string(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("stage", pa.string(), nullable=False),
        pa.field("message", pa.binary(), nullable=False),
        pa.field("counterpart", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("raw", pa.binary()),
        pa.field("size", pa.int64()),
        pa.field("digest", pa.binary()),
        pa.field("leaf", pa.binary(), nullable=False),
    ]
)
"""Columns of a file; `fabric` and `date` are in its key. `leaf` is a prefix of the hop's leaf hash."""

LEAF_COLUMNS = ["seq", "at", "stage", "message", "counterpart", "reason", "size", "digest"]
CHECK_BYTES = 8
"""How many bytes of a leaf hash are in the column `leaf`."""


def list_columns(table: Any) -> list[list[Any]]:
    """The columns of LEAF_COLUMNS as lists, times in microseconds."""
    columns = [table.column(name) for name in LEAF_COLUMNS]
    columns[1] = columns[1].cast(pa.int64())
    return [column.to_pylist() for column in columns]


def read_words(where: str, seq: int, stage: str, reason: str | None) -> tuple[Stage, Reason | None]:
    """Stage and reason of a row; JournalDamaged, naming `where` it was read, for an unknown one."""
    try:
        return STAGES[stage], None if reason is None else REASONS[reason]
    except KeyError as unknown:
        raise JournalDamaged(f"{where}: hop {seq}: {unknown} is unknown") from None


def hash_rows(where: str, table: Any) -> Iterator[bytes]:
    """Leaf hashes of rows in order; rows that differ only in their counterpart are hashed as one run."""
    seqs, times, stages, messages, counterparts, reasons, sizes, digests = list_columns(table)
    start, rows = 0, len(seqs)
    while start < rows:
        stop = start + 1
        while (
            stop < rows
            and messages[stop] == messages[start]
            and times[stop] == times[start]
            and stages[stop] == stages[start]
            and reasons[stop] == reasons[start]
            and digests[stop] is None
            and sizes[stop] is None
        ):
            stop += 1
        stage, reason = read_words(where, seqs[start], stages[start], reasons[start])
        tails = [encode_tail(stage, reason, name) for name in counterparts[start:stop]]
        digest = NO_DIGEST if digests[start] is None else digests[start]
        yield from hash_run(seqs[start], times[start], messages[start], tails, digest, sizes[start] or 0)
        start = stop


def check_rows(where: str, table: Any) -> list[bytes]:
    """Leaf hashes of rows with all columns; JournalDamaged if a row is not as it was sealed."""
    leaves = list(hash_rows(where, table))
    columns = (table.column(name).to_pylist() for name in ("seq", "leaf", "raw", "digest"))
    for leaf, (seq, check, raw, digest) in zip(leaves, zip(*columns, strict=True), strict=True):
        if leaf[:CHECK_BYTES] != check or (raw is not None and hashlib.sha256(raw).digest() != digest):
            raise JournalDamaged(f"{where}: hop {seq} is not as it was sealed")
    return leaves
