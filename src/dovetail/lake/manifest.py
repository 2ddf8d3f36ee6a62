"""The lake: where sealed hops lie, what their columns are, and the manifests that announce them.

    LAKE/fabric=pcp/date=2026-11-15/<server>.<first seq>-<last seq>.parquet
    LAKE/_manifests/<server>/<first seq>-<last seq>.json
    LAKE/_index/<server>/<first seq>-<last seq>.index        an aid to find messages: see `index`

`<server>` is readable text of the server's URI and 8 hex digits of its SHA-256. A Parquet file counts only when a
manifest announces it; a manifest is written last, whole, and never again. Readers that list files skip names with a
leading `_` or `.`.

A compaction writes a manifest of a higher generation, `<first seq>-<last seq>.g<generation>.json`, over the hops of one
or several others. From the moment it has its name, manifests of lower generations whose hops it covers do not count: so
one rename replaces them all, and `standing_paths` tells by the names alone which ones count.
"""

from __future__ import annotations

import bisect
import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from dovetail.fabrics import check_name
from dovetail.model.errors import CheckpointError, JournalDamaged
from dovetail.tlog.checkpoint import SignedCheckpoint, parse_checkpoint
from dovetail.tlog.tree import Frontier

MANIFEST_FORMAT = 1
COMPACTED_FORMAT = 2
MANIFESTS = "_manifests"
MAX_MANIFEST_BYTES = 64 << 20
_MAX_SLUG_CHARS = 80
_ATTEMPTS = 5
_MANIFEST_NAME = re.compile(r"([0-9]{19})-([0-9]{19})(?:\.g([0-9]{6}))?\.json")


class KeptFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a compaction kept of the messages whose bytes it removed from a file: a Parquet file beside it."""

    path: str
    rows: int
    bytes: int
    sha256: str


class EarlierCheckpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A checkpoint of a manifest that a compaction replaced.

    `proof` shows that its hops are the first ones of the checkpoint over `end` hops, which the same manifest has too.
    """

    note: str
    end: int
    proof: list[str]


class SealedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One Parquet file: a perfect subtree of the journal's tree.

    A compaction adds `kept`, and in `bytes_until_us` the earliest expiry of the bytes that it left; 0 is unknown.
    """

    path: str
    first_seq: int
    rows: int
    first_at_us: int
    last_at_us: int
    bytes: int
    sha256: str
    root: str
    kept: KeptFile | None = None
    bytes_until_us: int = 0

    @property
    def end(self) -> int:
        """The position after its last hop."""
        return self.first_seq + self.rows

    @property
    def level(self) -> int:
        """The height of its subtree; it has `1 << level` rows."""
        return self.rows.bit_length() - 1


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one sealing added: its files, and the signed checkpoint that their roots lead to.

    `frontier` are the peaks of the tree after the last file, so that the next sealing need not read earlier manifests.
    One that a compaction wrote has a `generation`, and the checkpoints of the manifests that it replaced.
    """

    format: int
    server: str
    fabric: str
    key: str
    checkpoint: str
    frontier: list[str]
    files: list[SealedFile]
    generation: int = 0
    earlier: list[EarlierCheckpoint] = []

    def __post_init__(self) -> None:
        check_name(self.fabric)

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


def manifest_name(first_seq: int, end: int, generation: int = 0) -> str:
    """The file name of a manifest."""
    return f"{range_name(first_seq, end)}{generation_mark(generation)}.json"


def generation_mark(generation: int) -> str:
    """What stands in the names of a generation's files; nothing for what a sealing wrote."""
    return f".g{generation:06d}" if generation else ""


def manifest_paths(lake: Path, server: str | None = None) -> list[Path]:
    """Manifests that count, of one server or of all, each server's in the order of its hops."""
    if server is not None:
        return standing_paths(manifest_directory(lake, server).glob("[0-9]*.json"))
    return standing_paths((lake / MANIFESTS).glob("*/[0-9]*.json"))


def standing_paths(paths: Iterable[Path]) -> list[Path]:
    """Those of these manifests that none of a higher generation replaces, in order."""
    ordered = sorted(paths)
    by_directory: dict[Path, list[tuple[str, str, str, Path]]] = {}
    for path in ordered:
        if (name := _MANIFEST_NAME.fullmatch(path.name)) is not None:
            by_directory.setdefault(path.parent, []).append((name[1], name[2], name[3] or "", path))
    replaced: set[Path] = set()
    for named in by_directory.values():
        for first, last, generation, _ in named:
            # numbers of one width compare as their texts do
            for other in named[bisect.bisect_left(named, (first,)) :] if generation else ():
                if other[0] > last:
                    break
                if other[1] <= last and other[2] < generation:
                    replaced.add(other[3])
    return [path for path in ordered if path not in replaced]


def read_manifest(path: Path) -> Manifest:
    """One manifest; JournalDamaged where it is not whole or contradicts itself."""
    if path.stat().st_size > MAX_MANIFEST_BYTES:
        raise JournalDamaged(f"{path} has {path.stat().st_size} bytes, expected at most {MAX_MANIFEST_BYTES}")
    try:
        manifest = _decoder.decode(path.read_bytes())
        expected = COMPACTED_FORMAT if manifest.generation else MANIFEST_FORMAT
        if manifest.format != expected or not manifest.files:
            raise JournalDamaged(f"{path} has manifest format {manifest.format}, expected {expected}")
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
    if path.name != manifest_name(manifest.first_seq, manifest.end, manifest.generation):
        raise JournalDamaged(f"{path} is named after other hops than it announces")
    return manifest


def read_manifests(lake: Path, server: str | None = None) -> list[Manifest]:
    """All manifests that count, of one server or of all."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return [read_manifest(path) for path in manifest_paths(lake, server)]
        except FileNotFoundError:
            continue  # a compaction has replaced it since it was listed
    return [read_manifest(path) for path in manifest_paths(lake, server)]


def latest_manifest(lake: Path, server: str) -> Manifest | None:
    """The manifest that goes furthest for this server."""
    paths = manifest_paths(lake, server)
    return read_manifest(paths[-1]) if paths else None


def encode_manifest(manifest: Manifest) -> bytes:
    """A manifest as its file has it."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1)


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
