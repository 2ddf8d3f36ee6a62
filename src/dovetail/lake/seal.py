"""Sealing: writes closed ranges of a journal to Parquet files of the lake, which never change.

Every file is a perfect subtree of the journal's Merkle tree (a power of two of hops, aligned), of one UTC date, so that
roots can be recomputed file by file, in parallel. A sealing covers everything from the end of the last one up to the
latest signed checkpoint. Before the manifest is created, the roots of the files are folded up to that checkpoint: a
journal that was tampered with is never sealed.

The manifest is created last, under the next number. Of two sealings that start at the same hop only one succeeds. A
crash leaves at most files that no manifest lists; the next sealing writes the range again, and `retain` deletes them
later. If none of a server's files has an index, the next sealing creates them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from dovetail.journal.continuity import check_continuity
from dovetail.journal.reader import JournalReader
from dovetail.journal.stored_tree import JournalTree
from dovetail.journal.verify import no_progress
from dovetail.lake.head import Head, read_head
from dovetail.lake.known import known_by
from dovetail.lake.layout import INDEXES, index_key, server_slug
from dovetail.lake.manifest import MANIFEST_FORMAT, Manifest, SealedFile
from dovetail.lake.rollup import roll_up
from dovetail.lake.rows import CHECK_BYTES, LAKE_SCHEMA
from dovetail.lake.segments import Segment, plan_segments
from dovetail.lake.snapshot import commit, snapshot
from dovetail.lake.store import Store
from dovetail.lake.writer import GROUP_BYTES, GROUP_ROWS, FileWriter, index_file, put_bytes
from dovetail.model.errors import JournalDamaged, JournalError, JournalLocked
from dovetail.model.hop import Hop
from dovetail.tlog.checkpoint import SignedCheckpoint
from dovetail.tlog.leaf import NO_DIGEST
from dovetail.tlog.tree import Frontier, split_hashes

DEFAULT_TARGET_BYTES = 128 << 20

Progress = Callable[[int, int], None]


def seal_journal(
    path: Path,
    store: Store,
    *,
    target_bytes: int = DEFAULT_TARGET_BYTES,
    progress: Progress = no_progress,
) -> Manifest | None:
    """Seal everything up to the latest checkpoint that is not sealed yet; None if nothing is new. Idempotent.

    Raises JournalDamaged if the hops are not those that were signed, and JournalRolledBack if the lake, or the
    journal's high-water mark, knows of hops that the journal does not have; nothing is sealed then.
    """
    with JournalReader.open(path) as reader:
        server = reader.identity.server
        head = read_head(store, reader.identity.verifier)
        checkpoint = reader.latest_checkpoint()
        _check_continues(reader, head, checkpoint, store)
        _index_missing(store, server)
        if checkpoint is None or checkpoint.size == head.end:
            return None
        tree = Frontier() if head.manifest is None else head.manifest.tree()
        files = []
        for segment in plan_segments(reader, head.end, checkpoint.size, target_bytes):
            if segment.end - (1 << segment.level) != tree.size:
                raise JournalDamaged(f"{path}: hops from {tree.size} on are missing")
            file = _write_segment(reader, store, segment)
            tree.append(bytes.fromhex(file.root), segment.level)
            files.append(file)
            progress(segment.end - head.end, checkpoint.size - head.end)
        if tree.root() != checkpoint.root:
            raise JournalDamaged(
                f"{path}: hops {head.end} to {checkpoint.size - 1} are not those that were signed; "
                "`dovetail journal verify` tells which"
            )
        manifest = Manifest(
            format=MANIFEST_FORMAT,
            server=server,
            fabric=reader.identity.fabric,
            key=reader.identity.verifier.text(),
            checkpoint=checkpoint.note,
            frontier=[peak.hex() for peak in tree.peaks()],
            files=files,
        )
        sealed = commit(store, manifest, head.next_number, lambda newer: newer.end > head.end)
        if sealed is None:
            raise JournalLocked(
                f"hops {head.end} to {manifest.end - 1} of {server}: another process sealed them meanwhile"
            )
        assert sealed.number is not None
        roll_up(store, head.log, sealed.number + 1)
        return sealed


def _check_continues(reader: JournalReader, head: Head, checkpoint: SignedCheckpoint | None, store: Store) -> None:
    """Check that the journal continues the lake: the same key, all that was sealed, and all that it ever had."""
    check_continuity(reader, known_by(head, store))
    signed = 0 if checkpoint is None else checkpoint.size
    if signed < head.end:
        raise JournalError(
            f"{reader.path} has {signed} signed hops, and {head.end} hops of {reader.identity.server} are sealed: its "
            "server signs them when it runs, or give its key"
        )


class _Columns:
    """Rows to be written to a file, bounded by number and bytes."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._hops: list[Hop] = []
        self._leaves: list[bytes] = []
        self._digests: list[bytes | None] = []
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return len(self._hops) >= GROUP_ROWS or self._bytes >= GROUP_BYTES

    def add(self, hop: Hop, leaf: bytes, digest: bytes) -> None:
        self._hops.append(hop)
        self._leaves.append(leaf)
        self._digests.append(None if digest == NO_DIGEST else digest)
        self._bytes += len(hop.raw or b"")

    def flush(self, file: FileWriter) -> None:
        hops = self._hops
        file.add(
            pa.table(
                [
                    [hop.server for hop in hops],
                    [hop.seq for hop in hops],
                    pa.array([hop.at_us for hop in hops], pa.int64()).cast(LAKE_SCHEMA.field("at").type),
                    [str(hop.stage) for hop in hops],
                    [hop.message for hop in hops],
                    [hop.counterpart for hop in hops],
                    [hop.reason and str(hop.reason) for hop in hops],
                    [hop.raw for hop in hops],
                    [hop.size for hop in hops],
                    self._digests,
                    [leaf[:CHECK_BYTES] for leaf in self._leaves],
                ],
                schema=LAKE_SCHEMA,
            )
        )
        file.commit_to([hop.message for hop in hops], self._leaves)
        self._clear()


def _write_segment(reader: JournalReader, store: Store, segment: Segment) -> SealedFile:
    """Put one file into the lake; no manifest lists it yet."""
    columns = _Columns()
    rows = 0
    with store.scratch() as scratch:
        file = FileWriter(scratch)
        for hop, leaf, digest in _rows(reader, segment.first_seq, segment.end):
            rows += 1
            columns.add(hop, leaf, digest)
            if columns.is_full:
                columns.flush(file)
        columns.flush(file)
        if rows != 1 << segment.level:
            raise JournalDamaged(f"{reader.path}: hops {segment.first_seq} to {segment.end - 1} are incomplete")
        return file.finish(store, reader.identity.server, reader.identity.fabric, segment.date)


def _rows(reader: JournalReader, first: int, end: int) -> Iterator[tuple[Hop, bytes, bytes]]:
    """Hops from `first` up to but excluding `end`, with their leaf hashes and digests."""
    tree = JournalTree(reader)
    for group in reader.commits(first, end):
        messages = reader.messages_by_id({run.message_id for run in group.runs}, group.first_seq, group.end)
        by_address = {message.address: message for message in messages.values()}
        hops = reader.hops_of_commit(group, messages)
        for hop, leaf in zip(hops, split_hashes(tree.hash_commit(group.row).leaves), strict=True):
            if first <= hop.seq < end:
                yield hop, leaf, by_address[hop.message].digest_on(hop.seq)


def _index_missing(store: Store, server: str) -> None:
    """Write the indexes of all files of a server that has none."""
    if any(True for _ in store.list(f"{INDEXES}/{server_slug(server)}/")):
        return
    for manifest in snapshot(store, server).manifests():
        for file in manifest.files:
            # an unreadable file gets no index; the audit reports what is wrong with it
            with contextlib.suppress(OSError, pa.ArrowException, JournalDamaged), store.scratch() as scratch:
                index = index_file(store, file)
                if index is not None:
                    put_bytes(store, index_key(server, file.path), index, scratch / "index")
