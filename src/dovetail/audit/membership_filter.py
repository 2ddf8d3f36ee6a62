"""A sieve: finds the few values of a long column that are wanted.

Nearly all values that are looked through are not wanted, and Arrow's own `is_in` makes a hash of every one of them. The
values asked for here are addresses, keys and digests, so that a few of their last bytes tell them apart. Those choose a
place in a table of marks; what falls on a mark is looked at in full, which is one value in thirty where as many as the
table is made for are wanted.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_TAIL_BYTES = 8
_MARKS_PER_VALUE = 32
_MIN_MARK_BITS, _MAX_MARK_BITS = 16, 26
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio: multiplied by it, neighbours fall far from each other."""


class Sieve:
    """Made for the values that are wanted, which are binary."""

    __slots__ = ("_marks", "_shift", "_wanted")

    def __init__(self, wanted: pa.Array) -> None:
        wanted = wanted.drop_null()
        self._wanted = frozenset(wanted.to_pylist())
        bits = (max(len(wanted), 1) * _MARKS_PER_VALUE - 1).bit_length()
        bits = min(max(bits, _MIN_MARK_BITS), _MAX_MARK_BITS)
        self._shift = np.uint64(64 - bits)
        self._marks = np.zeros(1 << bits, np.bool_)
        self._marks[self._places(wanted)] = True

    def find(self, values: pa.ChunkedArray) -> pa.Array:
        """The places of those values that are wanted; one that is null never is."""
        found: list[int] = []
        start = 0
        for chunk in values.chunks:
            perhaps = np.flatnonzero(self._marks[self._places(chunk)])
            looked_at = zip(perhaps.tolist(), chunk.take(pa.array(perhaps)).to_pylist(), strict=True)
            found += [start + place for place, value in looked_at if value in self._wanted]
            start += len(chunk)
        return pa.array(found, pa.int64())

    def _places(self, values: pa.Array) -> npt.NDArray[np.int64]:
        """Where the marks of these values are."""
        return (_tails(values) * _SPREAD >> self._shift).astype(np.int64)


def _tails(values: pa.Array) -> npt.NDArray[np.uint64]:
    """The last eight bytes of each value as a number; zero for a shorter one, and for null."""
    _, offsets, data = values.buffers()
    if data is None or not len(values):
        return np.zeros(len(values), np.uint64)
    limits = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    first, length = int(limits[0]), int(limits[1] - limits[0])
    content = np.frombuffer(data, np.uint8)[first : limits[-1]]
    lengths = np.diff(limits)
    if length >= _TAIL_BYTES and (lengths == length).all():
        tails = np.ascontiguousarray(content.reshape(-1, length)[:, -_TAIL_BYTES:])
        return tails.view("<u8").reshape(-1)
    tails = np.zeros((len(values), _TAIL_BYTES), np.uint8)
    is_long = lengths >= _TAIL_BYTES
    tails[is_long] = content[(limits[1:][is_long] - first)[:, None] + np.arange(-_TAIL_BYTES, 0)]
    return tails.view("<u8").reshape(-1)
