"""Writes one sealed file with its index, for sealing and for compaction.

Rows go into a Parquet file in a scratch directory. Their leaf hashes give the file's root, their messages its index:
from the journal when sealing, from the rows read back when compacting. Then both files are put into the lake, where
they become active once a manifest lists them.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dovetail.lake.index import IndexBuilder
from dovetail.lake.layout import TOKEN_CHARS, data_key, index_key
from dovetail.lake.manifest import SealedFile
from dovetail.lake.rows import LAKE_SCHEMA, LEAF_COLUMNS, hash_rows
from dovetail.lake.store import Store
from dovetail.model.errors import JournalDamaged

GROUP_ROWS = 65_536
GROUP_BYTES = 32 << 20
"""A row group of a file ends at the first of these."""

READ_ROWS = 8192
_DICTIONARY = ["server", "stage", "message", "counterpart", "reason"]
_STATISTICS = ["seq", "at", "message"]
_HASH_BYTES = 1 << 20


class FileWriter:
    """One file being written to the lake. Pass it all rows, and their leaves; then `finish`."""

    def __init__(self, scratch: Path) -> None:
        self._path = scratch / "rows.parquet"
        self._writer: Any = None
        self._group: list[pa.Table] = []
        self._index = IndexBuilder()
        self._rows = 0
        self._first_seq = self._first_at_us = self._last_at_us = 0

    def add(self, rows: pa.Table) -> None:
        """Append rows with the lake's columns."""
        if not rows.num_rows:
            return
        if not self._rows:
            self._first_seq, self._first_at_us = rows.column("seq")[0].as_py(), rows.column("at")[0].value
        self._last_at_us = rows.column("at")[-1].value
        self._rows += rows.num_rows
        self._group.append(rows)
        is_full = sum(part.num_rows for part in self._group) >= GROUP_ROWS
        if is_full or sum(part.nbytes for part in self._group) >= GROUP_BYTES:
            self._flush()

    def commit_to(self, messages: Sequence[bytes], leaves: Sequence[bytes]) -> None:
        """Append the messages and leaf hashes of rows, which may be added before or after."""
        self._index.add(messages, leaves)

    def root(self) -> bytes:
        """The root of the leaves; JournalDamaged unless there is one per row, a power of two of them."""
        if not self._rows or self._rows & (self._rows - 1) or self._rows != self._index.rows:
            raise JournalDamaged(f"{self._rows} rows with {self._index.rows} leaves, expected a power of two of each")
        return self._index.root()

    def read_back(self) -> Iterator[pa.Table]:
        """End the file, and read back its rows."""
        self._close()
        with pq.ParquetFile(self._path) as file:
            for batch in file.iter_batches(batch_size=READ_ROWS):
                yield pa.Table.from_batches([batch])

    def finish(
        self, store: Store, server: str, fabric: str, date: dt.date | str, token: str | None = None
    ) -> SealedFile:
        """Put the file and its index into the lake, not listed yet. By default the token is derived from its bytes."""
        self._close()
        root = self.root().hex()
        with self._path.open("rb") as written:
            sha256 = hashlib.file_digest(written, "sha256").hexdigest()
        end = self._first_seq + self._rows
        key = data_key(server, fabric, date, self._first_seq, end, token or sha256[:TOKEN_CHARS])
        store.put_file(key, self._path)
        put_bytes(store, index_key(server, key), self._index.encode(sha256), self._path.with_name("index"))
        return SealedFile(
            path=key,
            first_seq=self._first_seq,
            rows=self._rows,
            first_at_us=self._first_at_us,
            last_at_us=self._last_at_us,
            bytes=self._path.stat().st_size,
            sha256=sha256,
            root=root,
        )

    def _flush(self) -> None:
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._path, LAKE_SCHEMA, compression="zstd", use_dictionary=_DICTIONARY, write_statistics=_STATISTICS
            )
        if self._group:
            self._writer.write_table(pa.concat_tables(self._group))
            self._group = []

    def _close(self) -> None:
        if self._writer is None or self._writer.is_open:
            self._flush()
            self._writer.close()


def put_bytes(store: Store, key: str, data: bytes, scratch: Path) -> None:
    """Put bytes into the lake through this scratch file."""
    scratch.write_bytes(data)
    store.put_file(key, scratch)


def index_file(store: Store, file: SealedFile) -> bytes | None:
    """Build the index of a file from its rows; None if they do not lead to its root."""
    index = IndexBuilder()
    with store.open(file.path) as source, pq.ParquetFile(source) as parquet:
        for batch in parquet.iter_batches(batch_size=READ_ROWS, columns=LEAF_COLUMNS):
            rows = pa.Table.from_batches([batch])
            index.add(rows.column("message").to_pylist(), list(hash_rows(file.path, rows)))
    is_same = index.rows == file.rows and index.root().hex() == file.root
    return index.encode(file.sha256) if is_same else None


def sha256_of(store: Store, key: str) -> str:
    """The hash of an object, in the form used by manifests."""
    digest = hashlib.sha256()
    with store.open(key) as source:
        while part := source.read(_HASH_BYTES):
            digest.update(part)
    return digest.hexdigest()
