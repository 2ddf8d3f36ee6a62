"""Reads the lake without Spark: what one server sealed, found and proven through its manifests.

The manifests state which files exist, which hops and times each has, and the root of each: a file is a perfect subtree.
So a proof reads only the files that contain its hops; for every other file it uses the root in the manifest. The index
beside each file says which rows a message is in, and has the roots of its blocks of leaves: with it a proof reads only
the parts of a file around its hops. Without an index, one column is searched and the leaves are rehashed. Only files
within the caller's time range are searched.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dovetail.journal.hop_source import MAX_MATCHES, CommittedHop, HopRange
from dovetail.lake.index import BLOCK_LEAVES, BLOCK_LEVEL, FileIndex
from dovetail.lake.manifest import Manifest, SealedFile
from dovetail.lake.rows import LEAF_COLUMNS, hash_rows, list_columns, read_words
from dovetail.lake.snapshot import snapshot
from dovetail.lake.store import Store
from dovetail.model.address import Address
from dovetail.model.errors import CheckpointError, JournalDamaged
from dovetail.model.hop import Hop
from dovetail.tlog.checkpoint import SignedCheckpoint, verify_checkpoint
from dovetail.tlog.keys import Verifier, parse_verifier
from dovetail.tlog.leaf import NO_DIGEST
from dovetail.tlog.tree import Frontier, fold_perfect

log = logging.getLogger("dovetail.lake")

_MAX_BLOCKS_CACHED = 256
_MAX_FILES_OPEN = 16
_MAX_INDEX_BYTES_CACHED = 256 << 20
_MAX_FOUND_CACHED = 4_096
_RANGE_HOPS = 2_048

TimeRange = tuple[int, int]
"""Start (inclusive) and end (exclusive), in microseconds."""


class ServerReader:
    """The sealed hops of one server. Files outside `searched` are not searched for messages, but proofs use them.

    No range that `read` returns spans two files, so that a damaged file hides no other.
    """

    def __init__(self, store: Store, manifests: Sequence[Manifest], searched: TimeRange | None = None) -> None:
        self._store = store
        self._latest = manifests[-1]
        self._files = [file for manifest in manifests for file in manifest.files]
        self._starts = [file.first_seq for file in self._files]
        self._searched = [file for file in self._files if searched is None or _overlaps(file, searched)]
        self._found: dict[Address, list[CommittedHop]] = {}
        self._blocks: dict[int, list[bytes]] = {}
        self._indexes: dict[int, FileIndex | None] = {}
        self._index_bytes = 0
        self._leaf_blocks: dict[int, list[bytes]] = {}
        self._parquets: dict[int, Any] = {}

    @property
    def _where(self) -> str:
        return f"{self._store}: {self.server}"

    @property
    def server(self) -> str:
        """The server's URI."""
        return self._latest.server

    @property
    def fabric(self) -> str:
        """The server's fabric."""
        return self._latest.fabric

    @property
    def size(self) -> int:
        """How many hops are sealed."""
        return self._latest.end

    @property
    def verifier(self) -> Verifier:
        """The key stated in the manifests."""
        try:
            return parse_verifier(self._latest.key)
        except CheckpointError as error:
            raise JournalDamaged(f"{self._store}: the key of {self.server}: {error}") from None

    def latest_checkpoint(self) -> SignedCheckpoint | None:
        """The checkpoint of the last sealing."""
        return self._latest.signed_checkpoint()

    def find(self, prefix: bytes) -> set[Address]:
        """Addresses that start with `prefix`; stops searching files once there are MAX_MATCHES."""
        found: set[Address] = set()
        for file in self._searched:
            for rows in self._rows_of(file, prefix, ["message"]):
                found.update(Address(value) for value in pc.unique(rows.column("message")).to_pylist())
            if len(found) >= MAX_MATCHES:
                break
        return found

    def hops_of(self, address: Address) -> list[CommittedHop]:
        """All hops of one message, in order."""
        if address not in self._found:
            if len(self._found) >= _MAX_FOUND_CACHED:
                self._found.clear()
            self._found[address] = [
                hop
                for file in self._searched
                for rows in self._rows_of(file, address, LEAF_COLUMNS)
                for hop in self._hops_in(rows)
            ]
        return self._found[address]

    def _rows_of(self, file: SealedFile, prefix: bytes, columns: list[str]) -> Iterator[Any]:
        """Rows whose messages start with `prefix`, from the row groups that the index names, else from all."""
        index = self._index(file)
        runs = None if index is None else index.runs_of(prefix)
        if runs == []:
            return
        parquet = self._open(file)
        position = 0
        for number in range(parquet.num_row_groups):
            rows = parquet.metadata.row_group(number).num_rows
            if runs is None:
                messages = parquet.read_row_group(number, columns=["message"]).column("message")
                is_here = pc.any(pc.starts_with(messages, prefix)).as_py()
            else:
                is_here = any(first < position + rows and position < first + count for first, count in runs)
            if is_here:
                table = parquet.read_row_group(number, columns=columns)
                yield table.filter(pc.starts_with(table.column("message"), prefix))
            position += rows

    def _index(self, file: SealedFile) -> FileIndex | None:
        if file.first_seq not in self._indexes:
            index = FileIndex.open(self._store, self.server, file)
            self._index_bytes += 0 if index is None else index.memory_bytes
            if self._index_bytes > _MAX_INDEX_BYTES_CACHED:
                self._indexes.clear()
                self._index_bytes = 0 if index is None else index.memory_bytes
            self._indexes[file.first_seq] = index
        return self._indexes[file.first_seq]

    def raw(self, address: Address) -> bytes | None:
        """The bytes of one message, from the hop that carries them."""
        for committed in self.hops_of(address):
            if committed.digest != NO_DIGEST:
                for row in self._rows_between(committed.hop.seq, committed.hop.seq + 1, ["raw"]):
                    raw: bytes | None = row.column("raw")[0].as_py()
                    return raw
        return None

    def bodies_between(self, first: int, end: int) -> Iterator[tuple[Address, bytes]]:
        """Messages whose bytes are stored with hops from `first` up to but excluding `end`."""
        for part in self._rows_between(first, end, ["message", "raw"]):
            with_bytes = part.filter(pc.is_valid(part.column("raw")))
            for message, raw in zip(*(with_bytes.column(name).to_pylist() for name in ("message", "raw")), strict=True):
                yield Address(message), raw

    def hops_between(self, first: int, end: int) -> list[CommittedHop]:
        """Hops from `first` up to but excluding `end`."""
        return [hop for part in self._rows_between(first, end, LEAF_COLUMNS) for hop in self._hops_in(part)]

    def range_before(self, end: int) -> tuple[int, int] | None:
        """A part of the file with the hops before `end`: its first hop and the time of the file's last one."""
        if end <= 0:
            return None
        file = self._files[bisect.bisect_left(self._starts, end) - 1]
        return max(file.first_seq, end - _RANGE_HOPS), file.last_at_us

    def read(self, first: int, end: int, *, with_bytes: bool) -> HopRange:
        """Hops from `first` up to but excluding `end`, with the bytes that these hops carry."""
        hops = [committed.hop for committed in self.hops_between(first, end)]
        return HopRange(hops, dict(self.bodies_between(first, end)) if with_bytes else {})

    def seq_at(self, at_us: int) -> int:
        """The position of the first hop at or after time `at_us`."""
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
        if level < BLOCK_LEVEL:
            leaves = self._leaves_around(file, first)
            start = first & (len(leaves) - 1)
            return fold_perfect(leaves[start : start + end - first])
        if file.first_seq not in self._blocks:
            self._blocks[file.first_seq] = self._block_roots(file)
        start = (first - file.first_seq) >> BLOCK_LEVEL
        return fold_perfect(self._blocks[file.first_seq][start : start + (1 << (level - BLOCK_LEVEL))])

    def _leaves_around(self, file: SealedFile, seq: int) -> list[bytes]:
        """The leaves of a hop's block, or of its file if that is smaller; blocks are cached."""
        level = min(file.level, BLOCK_LEVEL)
        first = seq >> level << level
        leaves = self._leaf_blocks.get(first)
        if leaves is None:
            if len(self._leaf_blocks) >= _MAX_BLOCKS_CACHED:
                self._leaf_blocks.clear()
            leaves = self._leaf_blocks[first] = list(self._leaves(first, first + (1 << level)))
        return leaves

    def _block_roots(self, file: SealedFile) -> list[bytes]:
        """From the index if they lead to the file's root, else from the rows."""
        index = self._index(file)
        roots = [] if index is None else index.block_roots()
        if roots and fold_perfect(roots).hex() == file.root:
            return roots
        leaves = list(self._leaves(file.first_seq, file.end))
        return [fold_perfect(leaves[start : start + BLOCK_LEAVES]) for start in range(0, len(leaves), BLOCK_LEAVES)]

    def _leaves(self, first: int, end: int) -> Iterator[bytes]:
        """Leaf hashes of hops."""
        for part in self._rows_between(first, end, LEAF_COLUMNS):
            yield from hash_rows(self._where, part)

    def _hops_in(self, table: Any) -> Iterator[CommittedHop]:
        for seq, at_us, stage, message, counterpart, reason, size, digest in zip(*list_columns(table), strict=True):
            known_stage, known_reason = read_words(self._where, seq, stage, reason)
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
            yield CommittedHop(hop, NO_DIGEST if digest is None else digest)

    def _rows_between(self, first: int, end: int, columns: list[str]) -> Iterator[Any]:
        """Parts of tables with the hops from `first` up to but excluding `end`, in order."""
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

    def _open(self, file: SealedFile) -> Any:
        parquet = self._parquets.get(file.first_seq)
        if parquet is not None:
            return parquet
        try:
            parquet = pq.ParquetFile(self._store.open(file.path))
        except (OSError, pa.ArrowException) as error:
            raise JournalDamaged(f"{self._store}: {file.path} cannot be read: {error}") from None
        rows = parquet.metadata.num_rows
        if rows != file.rows:
            raise JournalDamaged(f"{self._store}: {file.path} has {rows} rows, its manifest says {file.rows}")
        if len(self._parquets) >= _MAX_FILES_OPEN:
            self._parquets.clear()
        self._parquets[file.first_seq] = parquet
        return parquet


def open_lake(store: Store, searched: TimeRange | None = None) -> list[ServerReader]:
    """Readers of all servers in a lake; those whose manifests are unusable are logged and left out.

    JournalDamaged if none is left.
    """
    found = snapshot(store)
    if not found.servers:
        found.check()
        raise JournalDamaged(f"{store} has no manifests: it is not a lake")
    for directory, damage in found.damages.items():
        log.error("%s: the hops of %s are left out, since its manifests are unusable: %s", store, directory, damage)
    return [ServerReader(store, manifests, searched) for manifests in found.servers.values()]


def open_server(store: Store, verifier: Verifier) -> ServerReader | None:
    """Open a reader of the sealed part of the journal with this key; None if nothing is sealed.

    JournalDamaged if the last sealing is not signed with it.
    """
    manifests = snapshot(store, verifier.name, [verifier]).check().servers.get(verifier.name)
    if not manifests:
        return None
    try:
        verify_checkpoint(manifests[-1].checkpoint, [verifier])
    except CheckpointError as error:
        raise JournalDamaged(f"{store}: the last sealing of {verifier.name}: {error}") from None
    return ServerReader(store, manifests)


def _overlaps(file: SealedFile, searched: TimeRange) -> bool:
    return file.last_at_us >= searched[0] and file.first_at_us < searched[1]
