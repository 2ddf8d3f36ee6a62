"""The index beside each sealed file: which rows a message is in, and the roots of the file's blocks of leaves.

It allows finding and proving one message without reading a file's columns. It is a hint, not trusted: results are
compared with the rows, block roots must fold to the root in the manifest, and a reader ignores it if it is missing or
does not belong to the file.

All integers are little-endian:

    offset   bytes   field
    0        8       "DOVEIDX1"
    8        32      SHA-256 of the Parquet file, as in the manifest
    40       32      SHA-256 of everything from byte 88 on
    72       8       n: runs of consecutive rows of one message
    80       8       b: roots of blocks of 256 leaves; 0 if the file has fewer than 256 rows
    88       8 * n   first 8 bytes of each run's message, read as a big-endian number, ascending
             4 * n   first row of each run
             4 * n   rows of each run
             32 * b  block roots, in order of their leaves
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Iterable, Sequence
from sys import byteorder
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dovetail.lake.layout import index_key
from dovetail.lake.manifest import SealedFile
from dovetail.lake.store import Store
from dovetail.model.errors import JournalDamaged
from dovetail.tlog.tree import HASH_BYTES, fold_perfect

BLOCK_LEVEL = 8
BLOCK_LEAVES = 1 << BLOCK_LEVEL
_MAGIC = b"DOVEIDX1"
_HEAD = struct.Struct("<8s32s32sQQ")
_KEY_BYTES = 8
_RUN_BYTES = _KEY_BYTES + 4 + 4


class IndexBuilder:
    """Builds the index and the root of a file, from its rows in order."""

    __slots__ = ("_blocks", "_counts", "_firsts", "_keys", "_last", "_leaves", "rows")

    def __init__(self) -> None:
        self._keys = array("Q")
        self._firsts = array("I")
        self._counts = array("I")
        self._last: bytes | None = None
        self._leaves: list[bytes] = []
        self._blocks: list[bytes] = []
        self.rows = 0

    def add(self, messages: Iterable[bytes], leaves: Sequence[bytes]) -> None:
        """Append rows: the message and the leaf hash of each."""
        for message in messages:
            if message == self._last:
                self._counts[-1] += 1
            else:
                self._keys.append(int.from_bytes(message[:_KEY_BYTES], "big"))
                self._firsts.append(self.rows)
                self._counts.append(1)
                self._last = message
            self.rows += 1
        self._leaves += leaves
        whole = len(self._leaves) & -BLOCK_LEAVES
        for start in range(0, whole, BLOCK_LEAVES):
            self._blocks.append(fold_perfect(self._leaves[start : start + BLOCK_LEAVES]))
        del self._leaves[:whole]

    def root(self) -> bytes:
        """The root of the file; the number of its rows must be a power of two."""
        return fold_perfect(self._blocks or self._leaves)

    def encode(self, parquet_sha256: str) -> bytes:
        """Encode the index."""
        order = pc.sort_indices(_arrow(self._keys))
        parts = [_encode_column(values, order) for values in (self._keys, self._firsts, self._counts)]
        body = b"".join((*parts, *self._blocks))
        digest = hashlib.sha256(body).digest()
        return _HEAD.pack(_MAGIC, bytes.fromhex(parquet_sha256), digest, len(self._keys), len(self._blocks)) + body


class FileIndex:
    """The index of one sealed file."""

    __slots__ = ("_blocks", "_data", "_runs")

    def __init__(self, data: bytes, runs: int, blocks: int) -> None:
        self._data = data
        self._runs = runs
        self._blocks = blocks

    @classmethod
    def open(cls, store: Store, server: str, file: SealedFile) -> FileIndex | None:
        """Open the index of a file; None if it is missing, damaged or belongs to other bytes."""
        blocks = file.rows >> BLOCK_LEVEL
        limit = _HEAD.size + file.rows * _RUN_BYTES + blocks * HASH_BYTES
        try:
            data = store.get(index_key(server, file.path), 0, limit + 1)
        except (OSError, JournalDamaged):
            return None
        if len(data) < _HEAD.size:
            return None
        magic, parquet_sha256, digest, runs, own_blocks = _HEAD.unpack_from(data)
        if magic != _MAGIC or parquet_sha256.hex() != file.sha256 or own_blocks != blocks or runs > file.rows:
            return None
        if len(data) != _HEAD.size + runs * _RUN_BYTES + blocks * HASH_BYTES:
            return None
        with memoryview(data) as view:
            if hashlib.sha256(view[_HEAD.size :]).digest() != digest:
                return None
        return cls(data, runs, blocks)

    @property
    def memory_bytes(self) -> int:
        """Its size in memory."""
        return len(self._data)

    def runs_of(self, prefix: bytes) -> list[tuple[int, int]]:
        """Runs of messages that may start with `prefix`, as first row and number of rows, in row order."""
        head = prefix[:_KEY_BYTES]
        low = int.from_bytes(head.ljust(_KEY_BYTES, b"\x00"), "big")
        high = int.from_bytes(head.ljust(_KEY_BYTES, b"\xff"), "big")
        start = self._bisect(low)
        found = []
        while start < self._runs and self._key(start) <= high:
            found.append((self._number(0, start), self._number(1, start)))
            start += 1
        return sorted(found)

    def block_roots(self) -> list[bytes]:
        """The roots of the file's blocks."""
        start = _HEAD.size + self._runs * _RUN_BYTES
        return [self._data[place : place + HASH_BYTES] for place in range(start, len(self._data), HASH_BYTES)]

    def _bisect(self, key: int) -> int:
        low, high = 0, self._runs
        while low < high:
            middle = (low + high) // 2
            if self._key(middle) < key:
                low = middle + 1
            else:
                high = middle
        return low

    def _key(self, place: int) -> int:
        start = _HEAD.size + place * _KEY_BYTES
        return int.from_bytes(self._data[start : start + _KEY_BYTES], "little")

    def _number(self, column: int, place: int) -> int:
        start = _HEAD.size + self._runs * (_KEY_BYTES + 4 * column) + 4 * place
        return int.from_bytes(self._data[start : start + 4], "little")


def _arrow(values: array[int]) -> Any:
    kind = pa.uint64() if values.typecode == "Q" else pa.uint32()
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _encode_column(values: array[int], order: Any) -> bytes:
    """The values in this order, little-endian."""
    column = _arrow(values).take(order)
    ordered = array(values.typecode, column.buffers()[1].to_pybytes()[: len(values) * values.itemsize])
    if byteorder == "big":
        ordered.byteswap()
    return ordered.tobytes()


assert (array("Q").itemsize, array("I").itemsize) == (8, 4)
