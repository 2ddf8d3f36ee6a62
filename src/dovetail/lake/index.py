"""The index beside each sealed file: where a message's hops lie in it, and the roots of its blocks of leaves.

With it one message is found, and proven, without reading a file's columns. It is an aid and no part of the lake's
truth: what it points to is compared with the rows, block roots must fold to the root that the manifest announces, and a
reader does without it where it is missing or not that of the file.

    LAKE/_index/<server>/<first seq>-<last seq>.index, named after its file, all integers little-endian:

    offset   bytes   field
    0        8       "DOVEIDX1"
    8        32      SHA-256 of the Parquet file, as the manifest announces it
    40       32      SHA-256 of everything behind byte 88
    72       8       n: runs of consecutive rows of one message
    80       8       b: roots of blocks of 256 leaves; 0 where the file has fewer than 256 rows
    88       8 * n   first 8 bytes of each run's message, read as a big-endian number, ascending
             4 * n   first row of each run
             4 * n   rows of each run
             32 * b  block roots, in the order of their leaves
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from array import array
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from sys import byteorder
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dovetail.lake.manifest import SealedFile, server_slug
from dovetail.tlog.tree import HASH_BYTES, fold_perfect

INDEXES = "_index"
BLOCK_LEVEL = 8
BLOCK_LEAVES = 1 << BLOCK_LEVEL
MAX_RUNS = 1 << 26
_MAGIC = b"DOVEIDX1"
_HEAD = struct.Struct("<8s32s32sQQ")
_KEY_BYTES = 8
_RUN_BYTES = _KEY_BYTES + 4 + 4


def index_directory(lake: Path, server: str) -> Path:
    """Where the indexes of a server's files lie."""
    return lake / INDEXES / server_slug(server)


def index_path(lake: Path, server: str, file: str) -> Path:
    """The index of the Parquet file at this path."""
    name = PurePosixPath(file).stem.removeprefix(f"{server_slug(server)}.")
    return index_directory(lake, server) / f"{name}.index"


class RunCollector:
    """The runs of a file's rows, as they are written."""

    __slots__ = ("_counts", "_firsts", "_keys", "_last", "_rows")

    def __init__(self) -> None:
        self._keys = array("Q")
        self._firsts = array("I")
        self._counts = array("I")
        self._last: bytes | None = None
        self._rows = 0

    def add(self, message: bytes) -> None:
        """The next row is of this message."""
        if message == self._last:
            self._counts[-1] += 1
        else:
            self._keys.append(int.from_bytes(message[:_KEY_BYTES], "big"))
            self._firsts.append(self._rows)
            self._counts.append(1)
            self._last = message
        self._rows += 1

    def encode(self, parquet_sha256: bytes, block_roots: Sequence[bytes]) -> bytes:
        """The bytes of the index."""
        order = pc.sort_indices(_arrow(self._keys))
        parts = [_encode_column(values, order) for values in (self._keys, self._firsts, self._counts)]
        body = b"".join((*parts, *block_roots))
        digest = hashlib.sha256(body).digest()
        return _HEAD.pack(_MAGIC, parquet_sha256, digest, len(self._keys), len(block_roots)) + body


def fold_blocks(leaves: Sequence[bytes]) -> list[bytes]:
    """The roots of a file's blocks; none where it has fewer rows than a block."""
    if len(leaves) < BLOCK_LEAVES:
        return []
    return [fold_perfect(leaves[start : start + BLOCK_LEAVES]) for start in range(0, len(leaves), BLOCK_LEAVES)]


class FileIndex:
    """The index of one sealed file."""

    __slots__ = ("_blocks", "_data", "_runs")

    def __init__(self, data: bytes | mmap.mmap, runs: int, blocks: int) -> None:
        self._data = data
        self._runs = runs
        self._blocks = blocks

    @classmethod
    def open(cls, lake: Path, server: str, file: SealedFile) -> FileIndex | None:
        """The index of a file; None where it is missing, damaged or that of other bytes."""
        try:
            with index_path(lake, server, file.path).open("rb") as handle:
                data = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):
            return None
        if len(data) < _HEAD.size:
            return None
        magic, parquet_sha256, digest, runs, blocks = _HEAD.unpack_from(data)
        expected_blocks = file.rows >> BLOCK_LEVEL
        if magic != _MAGIC or parquet_sha256.hex() != file.sha256 or blocks != expected_blocks or runs > MAX_RUNS:
            return None
        if len(data) != _HEAD.size + runs * _RUN_BYTES + blocks * HASH_BYTES:
            return None
        with memoryview(data) as view, view[_HEAD.size :] as body:
            if hashlib.sha256(body).digest() != digest:
                return None
        return cls(data, runs, blocks)

    def runs_of(self, prefix: bytes) -> list[tuple[int, int]]:
        """Runs, as first row and number of rows, of messages that may begin with `prefix`; in the order of rows."""
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
