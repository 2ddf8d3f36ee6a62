"""The lake: where sealed hops lie, what their columns are, and the manifests that announce them.

    LAKE/fabric=pcp/date=2026-11-15/<server>.<first seq>-<last seq>.parquet
    LAKE/_manifests/<server>/<first seq>-<last seq>.json
    LAKE/_index/<server>/<first seq>-<last seq>.index        an aid to find messages: see `index`

`<server>` is readable text of the server's URI and 8 hex digits of its SHA-256. A Parquet file counts only when a
manifest announces it; a manifest is written last, whole, and never again. Readers that list files skip names with a
leading `_` or `.`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dovetail.errors import CheckpointError, JournalDamaged
from dovetail.hop import Fabric
from dovetail.journal.checkpoint import SignedCheckpoint, parse_checkpoint
from dovetail.journal.merkle import Frontier

MANIFEST_FORMAT = 1
MANIFESTS = "_manifests"
MAX_MANIFEST_BYTES = 64 << 20
_MAX_SLUG_CHARS = 80


class SealedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One Parquet file: a perfect subtree of the journal's tree."""

    path: str
    first_seq: int
    rows: int
    first_at_us: int
    last_at_us: int
    bytes: int
    sha256: str
    root: str

    @property
    def end(self) -> int:
        """The position after its last hop."""
        return self.first_seq + self.rows

    @property
    def level(self) -> int:
        """The height of its subtree; it has `1 << level` rows."""
        return self.rows.bit_length() - 1


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one sealing added: its files, and the signed checkpoint that their roots lead to.

    `frontier` are the peaks of the tree after the last file, so that the next sealing need not read earlier manifests.
    """

    format: int
    server: str
    fabric: Fabric
    key: str
    checkpoint: str
    frontier: list[str]
    files: list[SealedFile]

    @property
    def first_seq(self) -> int:
        """The position of its first hop."""
        return self.files[0].first_seq

    @property
    def end(self) -> int:
        """The position after its last hop, which is the size of its checkpoint."""
        return self.files[-1].end

    def signed_checkpoint(self) -> SignedCheckpoint:
        """Its checkpoint, not verified."""
        return parse_checkpoint(self.checkpoint)

    def tree(self) -> Frontier:
        """The tree after its last file."""
        return Frontier(self.end, [bytes.fromhex(peak) for peak in self.frontier])


_decoder = msgspec.json.Decoder(Manifest)


def server_slug(server: str) -> str:
    """A server's URI as part of a file name: readable, and unique by its hash."""
    text = re.sub(r"[^A-Za-z0-9.-]+", "-", server.partition("://")[2]).strip("-.") or "server"
    return f"{text[:_MAX_SLUG_CHARS]}-{hashlib.sha256(server.encode()).hexdigest()[:8]}"


def range_name(first_seq: int, end: int) -> str:
    """A range of hops as part of a file name, both ends included, sorting as numbers do."""
    return f"{first_seq:019d}-{end - 1:019d}"


def manifest_directory(lake: Path, server: str) -> Path:
    """Where the manifests of a server lie."""
    return lake / MANIFESTS / server_slug(server)


def manifest_paths(lake: Path, server: str | None = None) -> list[Path]:
    """Manifests of one server or of all, each server's in the order of its hops."""
    if server is not None:
        return sorted(manifest_directory(lake, server).glob("[0-9]*.json"))
    return sorted((lake / MANIFESTS).glob("*/[0-9]*.json"))


def read_manifest(path: Path) -> Manifest:
    """One manifest; JournalDamaged where it is not whole or contradicts itself."""
    if path.stat().st_size > MAX_MANIFEST_BYTES:
        raise JournalDamaged(f"{path} has {path.stat().st_size} bytes, expected at most {MAX_MANIFEST_BYTES}")
    try:
        manifest = _decoder.decode(path.read_bytes())
        if manifest.format != MANIFEST_FORMAT or not manifest.files:
            raise JournalDamaged(f"{path} has manifest format {manifest.format}, expected {MANIFEST_FORMAT}")
        signed, tree = manifest.signed_checkpoint(), manifest.tree()
    except (msgspec.DecodeError, CheckpointError, ValueError) as error:
        raise JournalDamaged(f"{path} is not a manifest: {error}") from None
    position = manifest.first_seq
    for file in manifest.files:
        if file.first_seq != position or file.rows < 1 or file.rows & (file.rows - 1) or position % file.rows:
            raise JournalDamaged(f"{path}: {file.path} is not the subtree that follows hop {position}")
        position = file.end
    if signed.size != position or signed.checkpoint.origin != manifest.server or signed.root != tree.root():
        raise JournalDamaged(f"{path}: the checkpoint is not that of its files")
    if path.name != f"{range_name(manifest.first_seq, manifest.end)}.json":
        raise JournalDamaged(f"{path} is named after other hops than it announces")
    return manifest


def read_manifests(lake: Path, server: str | None = None) -> Iterator[Manifest]:
    """All manifests of one server or of all."""
    for path in manifest_paths(lake, server):
        yield read_manifest(path)


def latest_manifest(lake: Path, server: str) -> Manifest | None:
    """The manifest that goes furthest for this server."""
    paths = manifest_paths(lake, server)
    return read_manifest(paths[-1]) if paths else None


def publish(path: Path, data: bytes) -> None:
    """Write a whole file durably: to a temporary name, fsynced, then renamed."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
    publish_written(temporary, path)


def publish_written(temporary: Path, path: Path) -> None:
    """Give a written file its name, durably."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.rename(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
