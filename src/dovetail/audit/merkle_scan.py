"""Scans files in row order: continuity, and the subtrees that the leaf hashes fold to.

Plain generators over Arrow batches, run by `mapInArrow`. Spark yields the rows of a file in order, though a large file
may be split into several parts; so each part yields the perfect subtrees it can close, and `merge_parts` joins the
parts of a file on the driver. A row costs one hash, and no Python object but its leaf.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dovetail.tlog.tree import aligned_ranges, fold_perfect, hash_children

WALK_COLUMNS = ("file", "server", "seq", "at_us", "leaf_hash", "leaf_valid")
"""The columns the scan needs; `leaf_valid` may be null, which counts as invalid."""

PART_SCHEMA = pa.schema([("file", pa.string()), ("part", pa.binary())])
"""`part` is a `Part` in MessagePack: an internal format that is never queried."""

_NO_LEAF = bytes(32)
"""The leaf of a row that lacks an input of its leaf; nothing hashes to it."""


class Node(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A perfect subtree: `1 << level` leaves from `index << level`."""

    level: int
    index: int
    hash: bytes


class Part(msgspec.Struct, kw_only=True, gc=False):
    """The result of scanning consecutive rows of one file."""

    file: str
    first_seq: int
    last_seq: int
    first_at_us: int
    last_at_us: int
    rows: int = 0
    invalid: int = 0
    first_invalid: int | None = None
    breaks: int = 0
    first_break: int | None = None
    backwards: int = 0
    first_backwards: int | None = None
    servers: list[str] = []
    nodes: list[Node] = []


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Part)


def walk_files(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Parts of files, one row each, from rows with `WALK_COLUMNS`."""
    walker: _Walker | None = None
    for batch in batches:
        for file, rows in _runs_of_file(batch):
            if walker is None or walker.part.file != file:
                if walker is not None:
                    yield _encode_part(walker.close())
                walker = _Walker.begin(file, rows)
            walker.take(rows)
    if walker is not None:
        yield _encode_part(walker.close())


def decode_part(data: bytes) -> Part:
    """A part from its row."""
    return _decoder.decode(data)


def _encode_part(part: Part) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"file": [part.file], "part": [_encoder.encode(part)]}, schema=PART_SCHEMA)


@dataclass(slots=True)
class _Rows:
    seqs: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64]
    leaves: list[bytes]
    valid: npt.NDArray[np.bool_]
    servers: list[str]


def _runs_of_file(batch: pa.RecordBatch) -> Iterator[tuple[str, _Rows]]:
    """The rows of a batch, split where the file changes."""
    files = batch.column("file").dictionary_encode()
    codes = files.indices.to_numpy(zero_copy_only=False)
    if not len(codes):
        return
    cuts = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
    for start, end in pairwise(cuts):
        part = batch.slice(start, end - start)
        yield (
            files.dictionary[codes[start]].as_py(),
            _Rows(
                part.column("seq").fill_null(-1).to_numpy(zero_copy_only=False),
                part.column("at_us").fill_null(0).to_numpy(zero_copy_only=False),
                [leaf or _NO_LEAF for leaf in part.column("leaf_hash").to_pylist()],
                part.column("leaf_valid").fill_null(False).to_numpy(zero_copy_only=False),
                part.column("server").fill_null("").unique().to_pylist(),
            ),
        )


@dataclass(slots=True)
class _Walker:
    part: Part
    stack: list[Node] = field(default_factory=list)
    closed: list[Node] = field(default_factory=list)

    @classmethod
    def begin(cls, file: str, rows: _Rows) -> _Walker:
        seq, at = int(rows.seqs[0]), int(rows.times[0])
        # last_seq is one before the first row, so that adding the first row is not a break
        return cls(
            Part(file=file, first_seq=seq, last_seq=seq - 1, first_at_us=at, last_at_us=at, servers=[], nodes=[])
        )

    def take(self, rows: _Rows) -> None:
        part = self.part
        self._note_order(rows)
        invalid = np.flatnonzero(~rows.valid)
        if len(invalid):
            part.invalid += len(invalid)
            if part.first_invalid is None:
                part.first_invalid = int(rows.seqs[invalid[0]])
        part.servers = sorted({*part.servers, *rows.servers})
        part.rows += len(rows.seqs)
        self._fold(rows)

    def close(self) -> Part:
        self.part.nodes = self.closed + self.stack
        return self.part

    def _note_order(self, rows: _Rows) -> None:
        part = self.part
        steps = np.diff(rows.seqs, prepend=part.last_seq)
        broken = np.flatnonzero(steps != 1)
        if len(broken):
            part.breaks += len(broken)
            if part.first_break is None:
                part.first_break = int(rows.seqs[broken[0]])
        back = np.flatnonzero(np.diff(rows.times, prepend=part.last_at_us) < 0)
        if len(back):
            part.backwards += len(back)
            if part.first_backwards is None:
                part.first_backwards = int(rows.seqs[back[0]])
        part.last_seq, part.last_at_us = int(rows.seqs[-1]), int(rows.times[-1])

    def _fold(self, rows: _Rows) -> None:
        """Push leaves on the stack, closing perfect subtrees; a break in the order starts a new stack."""
        cuts = [0, *(np.flatnonzero(np.diff(rows.seqs) != 1) + 1).tolist(), len(rows.seqs)]
        for start, end in pairwise(cuts):
            first = int(rows.seqs[start])
            if self.stack and (self.stack[-1].index + 1) << self.stack[-1].level != first:
                self.closed += self.stack
                self.stack = []
            push_leaves(self.stack, first, rows.leaves[start:end])


def push_leaves(stack: list[Node], first: int, leaves: list[bytes]) -> None:
    """Append consecutive leaves from position `first` to a stack of subtrees that ends there."""
    for start, level in aligned_ranges(first, first + len(leaves)):
        at = start - first
        _push_one(stack, Node(level, start >> level, fold_perfect(leaves[at : at + (1 << level)])))


def _push_one(stack: list[Node], node: Node) -> None:
    """Push a subtree, merging it with its left siblings on the stack."""
    while stack and node.index & 1 and stack[-1].level == node.level and stack[-1].index == node.index - 1:
        node = Node(node.level + 1, node.index >> 1, hash_children(stack.pop().hash, node.hash))
    stack.append(node)


def merge_parts(parts: Iterable[Part]) -> Part:
    """Merge the parts of one file, in row order."""
    ordered = sorted(parts, key=lambda part: (part.first_seq, part.last_seq))
    whole = ordered[0]
    stack: list[Node] = []
    for part in ordered:
        for node in part.nodes:
            _push_one(stack, node)
    for part in ordered[1:]:
        if part.first_seq != whole.last_seq + 1:
            whole.breaks += 1
            whole.first_break = part.first_seq if whole.first_break is None else whole.first_break
        if part.first_at_us < whole.last_at_us:
            whole.backwards += 1
            whole.first_backwards = part.first_seq if whole.first_backwards is None else whole.first_backwards
        _add_counts(whole, part)
    whole.nodes = stack
    return whole


def _add_counts(whole: Part, part: Part) -> None:
    whole.rows += part.rows
    whole.invalid += part.invalid
    whole.breaks += part.breaks
    whole.backwards += part.backwards
    for name in ("first_invalid", "first_break", "first_backwards"):
        if getattr(whole, name) is None:
            setattr(whole, name, getattr(part, name))
    whole.last_seq, whole.last_at_us = part.last_seq, part.last_at_us
    whole.servers = sorted({*whole.servers, *part.servers})
