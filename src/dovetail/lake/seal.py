"""Sealing: closed ranges of a journal become Parquet files of the lake, and never change again.

Every file is a perfect subtree of the journal's Merkle tree (a power of two of hops, aligned), of one UTC date, so that
roots can be recomputed file by file, in parallel. A sealing covers everything from where the last one ended up to the
latest signed checkpoint. Before anything is announced, the roots of the files are folded up to that checkpoint: a
journal that was tampered with is never sealed.

Beside each file lies an index (`journal.index`), by which receipts find a message. A server's files from a time before
indexes get theirs at its next sealing, from the journal.

A crash at any moment leaves at most temporary files, Parquet files that no manifest announces and their indexes; the
next sealing removes them and writes the range again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dovetail.journal.database import CHECK_BYTES
from dovetail.journal.reader import JournalReader
from dovetail.journal.stored_tree import JournalTree
from dovetail.journal.verify import no_progress
from dovetail.lake.index import RunCollector, fold_blocks, index_directory, index_path
from dovetail.lake.manifest import (
    MANIFEST_FORMAT,
    Manifest,
    SealedFile,
    encode_manifest,
    latest_manifest,
    manifest_directory,
    manifest_name,
    publish,
    publish_written,
    range_name,
    read_manifests,
    server_slug,
)
from dovetail.lake.segments import Segment, plan_segments
from dovetail.model.errors import JournalDamaged, JournalError, JournalLocked
from dovetail.model.hop import Hop
from dovetail.tlog.leaf import NO_DIGEST
from dovetail.tlog.tree import Frontier, fold_perfect

DEFAULT_TARGET_BYTES = 128 << 20
GROUP_ROWS = 65_536
GROUP_BYTES = 32 << 20
"""A row group of a file ends at the first of these."""

_DICTIONARY = ["server", "stage", "message", "counterpart", "reason"]
_STATISTICS = ["seq", "at", "message"]

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
"""Columns of a file; `fabric` and `date` are in its path. `leaf` is the first 8 bytes of the hop's leaf hash."""

Progress = Callable[[int, int], None]


def seal_journal(
    path: Path,
    lake: Path,
    *,
    target_bytes: int = DEFAULT_TARGET_BYTES,
    progress: Progress = no_progress,
) -> Manifest | None:
    """Seal everything up to the latest checkpoint that is not sealed yet; None where nothing is new. Idempotent.

    Raises JournalDamaged, and announces nothing, where the hops are not those that were signed.
    """
    with JournalReader.open(path) as reader, sole_sealer(lake, reader.identity.server) as directory:
        before = latest_manifest(lake, reader.identity.server)
        first = before.end if before is not None else 0
        if not index_directory(lake, reader.identity.server).is_dir():
            _index_earlier(reader, lake)
        checkpoint = reader.latest_checkpoint()
        if before is not None and before.key != reader.identity.verifier.text():
            raise JournalError(f"{path} has another key than what was sealed of {reader.identity.server} before")
        if checkpoint is None or checkpoint.size <= first:
            return None
        _remove_unannounced(lake, reader.identity.server, first)
        tree = before.tree() if before is not None else Frontier()
        files = []
        for segment in plan_segments(reader, first, checkpoint.size, target_bytes):
            file = _write_segment(reader, lake, segment)
            tree.append(bytes.fromhex(file.root), segment.level)
            files.append(file)
            progress(segment.end - first, checkpoint.size - first)
        if tree.root() != checkpoint.root:
            raise JournalDamaged(
                f"{path}: hops {first} to {checkpoint.size - 1} are not those that were signed; "
                "`dovetail journal verify` tells which"
            )
        manifest = Manifest(
            format=MANIFEST_FORMAT,
            server=reader.identity.server,
            fabric=reader.identity.fabric,
            key=reader.identity.verifier.text(),
            checkpoint=checkpoint.note,
            frontier=[peak.hex() for peak in tree.peaks()],
            files=files,
        )
        publish(directory / manifest_name(first, checkpoint.size), encode_manifest(manifest))
        return manifest


class _Columns:
    """Rows on their way into a file, bounded by number and bytes."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._hops: list[Hop] = []
        self._leaves: list[bytes] = []
        self._digests: list[bytes | None] = []
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return len(self._hops) >= GROUP_ROWS or self._bytes >= GROUP_BYTES

    def add(self, hop: Hop, leaf: bytes, digest: bytes) -> None:
        self._hops.append(hop)
        self._leaves.append(leaf[:CHECK_BYTES])
        self._digests.append(None if digest == NO_DIGEST else digest)
        self._bytes += len(hop.raw or b"")

    def take(self) -> pa.Table:
        hops = self._hops
        table = pa.table(
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
                self._leaves,
            ],
            schema=LAKE_SCHEMA,
        )
        self.clear()
        return table


def _write_segment(reader: JournalReader, lake: Path, segment: Segment) -> SealedFile:
    """Write one file under a temporary name and rename it; it is not announced yet."""
    identity = reader.identity
    name = f"{server_slug(identity.server)}.{range_name(segment.first_seq, segment.end)}.parquet"
    path = lake / f"fabric={identity.fabric}" / f"date={segment.date.isoformat()}" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{name}.tmp")
    leaves: list[bytes] = []
    times: list[int] = []
    runs = RunCollector()
    columns = _Columns()
    with open_writer(temporary) as file:
        for hop, leaf, digest in _rows(reader, segment.first_seq, segment.end):
            leaves.append(leaf)
            times = [times[0] if times else hop.at_us, hop.at_us]
            runs.add(hop.message)
            columns.add(hop, leaf, digest)
            if columns.is_full:
                file.write_table(columns.take())
        file.write_table(columns.take())
    if len(leaves) != 1 << segment.level:
        raise JournalDamaged(f"{reader.path}: hops {segment.first_seq} to {segment.end - 1} are not all there")
    publish_written(temporary, path)
    sha256 = sha256_of(path)
    blocks = fold_blocks(leaves)
    publish(index_path(lake, identity.server, name), runs.encode(bytes.fromhex(sha256), blocks))
    return SealedFile(
        path=str(path.relative_to(lake)),
        first_seq=segment.first_seq,
        rows=len(leaves),
        first_at_us=times[0],
        last_at_us=times[-1],
        bytes=path.stat().st_size,
        sha256=sha256,
        root=fold_perfect(blocks or leaves).hex(),
    )


def _index_earlier(reader: JournalReader, lake: Path) -> None:
    """Indexes of the files that were sealed without them, as far as the journal's hops are those of the files."""
    directory = index_directory(lake, reader.identity.server)
    directory.mkdir(parents=True)
    for manifest in read_manifests(lake, reader.identity.server):
        for file in manifest.files:
            runs, leaves = RunCollector(), []
            for hop, leaf, _ in _rows(reader, file.first_seq, file.end):
                runs.add(hop.message)
                leaves.append(leaf)
            blocks = fold_blocks(leaves)
            if len(leaves) == file.rows and fold_perfect(blocks or leaves).hex() == file.root:
                path = index_path(lake, manifest.server, file.path)
                publish(path, runs.encode(bytes.fromhex(file.sha256), blocks))


def _rows(reader: JournalReader, first: int, end: int) -> Iterator[tuple[Hop, bytes, bytes]]:
    """Hops from `first` up to and without `end` with their leaf hashes and digests."""
    tree = JournalTree(reader)
    for commit in reader.commits(first, end):
        messages = reader.messages_by_id({run.message_id for run in commit.runs}, commit.first_seq, commit.end)
        by_address = {message.address: message for message in messages.values()}
        hops = reader.hops_of_commit(commit, messages)
        for hop, leaf in zip(hops, tree.hash_commit(commit, messages), strict=True):
            if first <= hop.seq < end:
                yield hop, leaf, by_address[hop.message].digest_on(hop.seq)


def open_writer(path: Path) -> Any:
    """A Parquet file of the lake, to be written."""
    return pq.ParquetWriter(
        path, LAKE_SCHEMA, compression="zstd", use_dictionary=_DICTIONARY, write_statistics=_STATISTICS
    )


def sha256_of(path: Path) -> str:
    """The hash of a file, as manifests have it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remove_unannounced(lake: Path, server: str, first: int) -> None:
    """Remove what an interrupted sealing left: temporary files, and files of hops that no manifest announces."""
    slug = server_slug(server)
    for path in lake.glob(f"fabric=*/date=*/.{slug}.*.tmp"):
        path.unlink()
    for path in lake.glob(f"fabric=*/date=*/{slug}.*.parquet"):
        if int(path.name.removeprefix(f"{slug}.").partition("-")[0]) >= first:
            path.unlink()
    for path in index_directory(lake, server).glob("*.index*"):
        if path.name.startswith(".") or int(path.name.partition("-")[0]) >= first:
            path.unlink()


@contextlib.contextmanager
def sole_sealer(lake: Path, server: str) -> Iterator[Path]:
    """The server's manifest directory, held by one sealing at a time."""
    directory = manifest_directory(lake, server)
    directory.mkdir(parents=True, exist_ok=True)
    lock = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise JournalLocked(f"{server} is being sealed into {lake} by another process") from None
    try:
        yield directory
    finally:
        os.close(lock)
