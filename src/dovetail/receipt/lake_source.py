"""Receipts from the lake, without Spark: what one server sealed, found and proven through its manifests.

The manifests tell which files there are, which hops and times each has, and the root of each: a file is a perfect
subtree. So a proof reads only the files that its hops lie in; all others stand in it with the root that their manifest
has. To find a message, one column of the files is read, and only of those that the caller's time range admits.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dovetail.errors import CheckpointError, JournalDamaged
from dovetail.hop import Address, Fabric, Hop, Reason, Stage
from dovetail.journal.checkpoint import SignedCheckpoint
from dovetail.journal.lake import MANIFESTS, Manifest, SealedFile, read_manifests
from dovetail.journal.layout import NO_DIGEST, encode_tail, hash_run
from dovetail.journal.merkle import Frontier, fold_perfect
from dovetail.receipt.source import KeptHop
from dovetail.signing import Verifier, parse_verifier

_BLOCK_LEVEL = 8
_HOP_COLUMNS = ["seq", "at", "stage", "message", "counterpart", "reason", "size", "digest"]
_STAGES = {str(stage): stage for stage in Stage}
_REASONS = {str(reason): reason for reason in Reason}

TimeRange = tuple[int, int]
"""From, and up to without, in microseconds."""


class LakeSource:
    """The sealed hops of one server. Files outside `searched` are not searched for messages, but still proven from."""

    def __init__(self, lake: Path, manifests: Sequence[Manifest], searched: TimeRange | None = None) -> None:
        self._lake = lake
        self._latest = manifests[-1]
        self._files = [file for manifest in manifests for file in manifest.files]
        self._starts = [file.first_seq for file in self._files]
        self._searched = [file for file in self._files if searched is None or _overlaps(file, searched)]
        self._found: dict[Address, list[KeptHop]] = {}
        self._blocks: dict[int, list[bytes]] = {}
        position = 0
        for file in self._files:
            if file.first_seq != position:
                raise JournalDamaged(f"{lake}: hops {position} to {file.first_seq - 1} of {self.server} are missing")
            position = file.end

    @property
    def server(self) -> str:
        """The server's URI."""
        return self._latest.server

    @property
    def fabric(self) -> Fabric:
        """The server's fabric."""
        return self._latest.fabric

    @property
    def verifier(self) -> Verifier:
        """The key that the manifests carry."""
        try:
            return parse_verifier(self._latest.key)
        except CheckpointError as error:
            raise JournalDamaged(f"{self._lake}: the key of {self.server}: {error}") from None

    def latest_checkpoint(self) -> SignedCheckpoint | None:
        """The checkpoint of the last sealing."""
        return self._latest.signed_checkpoint()

    def find(self, prefix: bytes) -> set[Address]:
        """Addresses that begin with `prefix`, at most a few."""
        found: set[Address] = set()
        for file in self._searched:
            for group in self._groups(file, ["message"]):
                column = group.column("message")
                matches = column.filter(pc.starts_with(column, prefix))
                found.update(Address(value) for value in pc.unique(matches).to_pylist())
            if len(found) > 1:
                break
        return found

    def hops_of(self, address: Address) -> list[KeptHop]:
        """All hops of one message, in order."""
        if address not in self._found:
            hops: list[KeptHop] = []
            for file in self._searched:
                parquet = self._open(file)
                for number in range(parquet.num_row_groups):
                    mask = pc.equal(parquet.read_row_group(number, columns=["message"]).column("message"), address)
                    if pc.any(mask).as_py():
                        hops += self._hops_in(parquet.read_row_group(number, columns=_HOP_COLUMNS).filter(mask))
            self._found[address] = hops
        return self._found[address]

    def raw(self, address: Address) -> bytes | None:
        """The bytes of one message, from the hop that carries them."""
        for kept in self.hops_of(address):
            if kept.digest != NO_DIGEST:
                for row in self._rows_between(kept.hop.seq, kept.hop.seq + 1, ["raw"]):
                    raw: bytes | None = row.column("raw")[0].as_py()
                    return raw
        return None

    def bodies_between(self, first: int, end: int) -> Iterator[tuple[Address, bytes]]:
        """Messages whose bytes lie on hops from `first` up to and without `end`."""
        for part in self._rows_between(first, end, ["message", "raw"]):
            with_bytes = part.filter(pc.is_valid(part.column("raw")))
            for message, raw in zip(*(with_bytes.column(name).to_pylist() for name in ("message", "raw")), strict=True):
                yield Address(message), raw

    def hops_between(self, first: int, end: int) -> list[KeptHop]:
        """Hops from `first` up to and without `end`."""
        return [kept for part in self._rows_between(first, end, _HOP_COLUMNS) for kept in self._hops_in(part)]

    def seq_at(self, at_us: int) -> int:
        """The position of the first hop whose time is `at_us` or later."""
        for file in self._files:
            if file.last_at_us >= at_us:
                for part in self._rows_between(file.first_seq, file.end, ["seq", "at"]):
                    later = part.filter(pc.greater_equal(part.column("at").cast(pa.int64()), at_us))
                    if later.num_rows:
                        seq: int = later.column("seq")[0].as_py()
                        return seq
        return self._latest.end

    def node(self, level: int, number: int) -> bytes:
        """The hash of a perfect subtree: from the roots of files, or from the rows of the one file around it."""
        first, end = number << level, (number + 1) << level
        index = bisect.bisect_right(self._starts, first) - 1
        file = self._files[index]
        if file.first_seq == first and file.end <= end:
            tree = Frontier()
            while tree.size < end - first:
                file = self._files[index]
                tree.append(bytes.fromhex(file.root), file.level)
                index += 1
            return tree.root()
        if level < _BLOCK_LEVEL or file.level < _BLOCK_LEVEL:
            return fold_perfect(list(self._leaves(first, end)))
        if file.first_seq not in self._blocks:
            self._blocks[file.first_seq] = list(self._fold_blocks(file))
        start = (first - file.first_seq) >> _BLOCK_LEVEL
        return fold_perfect(self._blocks[file.first_seq][start : start + (1 << (level - _BLOCK_LEVEL))])

    def _fold_blocks(self, file: SealedFile) -> Iterator[bytes]:
        leaves: list[bytes] = []
        for leaf in self._leaves(file.first_seq, file.end):
            leaves.append(leaf)
            if len(leaves) == 1 << _BLOCK_LEVEL:
                yield fold_perfect(leaves)
                leaves.clear()

    def _leaves(self, first: int, end: int) -> Iterator[bytes]:
        """Leaf hashes of hops; rows that differ only in their counterpart are hashed as the run they were."""
        for part in self._rows_between(first, end, _HOP_COLUMNS):
            seqs, times, stages, messages, counterparts, reasons, sizes, digests = _lists(part)
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
                stage, reason = self._words(seqs[start], stages[start], reasons[start])
                tails = [encode_tail(stage, reason, name) for name in counterparts[start:stop]]
                digest = NO_DIGEST if digests[start] is None else digests[start]
                yield from hash_run(seqs[start], times[start], messages[start], tails, digest, sizes[start] or 0)
                start = stop

    def _words(self, seq: int, stage: str, reason: str | None) -> tuple[Stage, Reason | None]:
        try:
            return _STAGES[stage], None if reason is None else _REASONS[reason]
        except KeyError as unknown:
            raise JournalDamaged(f"{self._lake}: hop {seq} of {self.server}: {unknown} is unknown") from None

    def _hops_in(self, table: Any) -> Iterator[KeptHop]:
        for seq, at_us, stage, message, counterpart, reason, size, digest in zip(*_lists(table), strict=True):
            known_stage, known_reason = self._words(seq, stage, reason)
            hop = Hop(
                server=self.server,
                seq=seq,
                at_us=at_us,
                fabric=self.fabric,
                stage=known_stage,
                message=Address(message),
                counterpart=counterpart,
                reason=known_reason,
                size=size,
            )
            yield KeptHop(hop, NO_DIGEST if digest is None else digest)

    def _rows_between(self, first: int, end: int, columns: list[str]) -> Iterator[Any]:
        """Parts of tables with the hops from `first` up to and without `end`, in order."""
        index = max(0, bisect.bisect_right(self._starts, first) - 1)
        for file in self._files[index:]:
            if file.first_seq >= end:
                return
            position = file.first_seq
            parquet = self._open(file)
            for number in range(parquet.num_row_groups):
                rows = parquet.metadata.row_group(number).num_rows
                start, stop = max(first, position), min(end, position + rows)
                if start < stop:
                    yield parquet.read_row_group(number, columns=columns).slice(start - position, stop - start)
                position += rows

    def _groups(self, file: SealedFile, columns: list[str]) -> Iterator[Any]:
        parquet = self._open(file)
        for number in range(parquet.num_row_groups):
            yield parquet.read_row_group(number, columns=columns)

    def _open(self, file: SealedFile) -> Any:
        path = self._lake / file.path
        try:
            parquet = pq.ParquetFile(path)
        except (OSError, pa.ArrowException) as error:
            raise JournalDamaged(f"{path} cannot be read: {error}") from None
        if parquet.metadata.num_rows != file.rows:
            raise JournalDamaged(f"{path} has {parquet.metadata.num_rows} rows, its manifest says {file.rows}")
        return parquet


def open_lake(lake: Path, searched: TimeRange | None = None) -> list[LakeSource]:
    """The sources of all servers in a lake, by the manifests alone."""
    if not (lake / MANIFESTS).is_dir():
        raise JournalDamaged(f"{lake} has no manifests: it is not a lake")
    by_server: dict[str, list[Manifest]] = {}
    for manifest in read_manifests(lake):
        by_server.setdefault(manifest.server, []).append(manifest)
    return [LakeSource(lake, manifests, searched) for _, manifests in sorted(by_server.items())]


def _lists(table: Any) -> list[list[Any]]:
    """The columns of `_HOP_COLUMNS` as lists, times in microseconds."""
    columns = [table.column(name) for name in _HOP_COLUMNS]
    columns[1] = columns[1].cast(pa.int64())
    return [column.to_pylist() for column in columns]


def _overlaps(file: SealedFile, searched: TimeRange) -> bool:
    return file.last_at_us >= searched[0] and file.first_at_us < searched[1]
