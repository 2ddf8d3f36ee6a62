"""Manifests: what a sealing or a compaction added to the lake, and the signed checkpoint that it leads to.

Manifests of a server are numbered. A writer adds one by creating the next number, which succeeds only once: that is the
commit point. A file is active only if an active manifest lists it.

A compaction's manifest names in `replaces` all manifests that it replaces, including those that they had replaced
before. These lists alone determine which manifests are active, whatever has been deleted since: see `snapshot`.
"""

from __future__ import annotations

import re

import msgspec

from dovetail.fabrics import check_name, name_of
from dovetail.lake.layout import (
    MAX_NUMBER,
    check_data_key,
    manifest_key,
    manifest_prefix,
    parse_manifest_key,
    range_manifest_name,
    retained_key,
)
from dovetail.model.errors import CheckpointError, JournalDamaged
from dovetail.tlog.checkpoint import SignedCheckpoint, parse_checkpoint
from dovetail.tlog.tree import Frontier

MANIFEST_FORMAT = 3
SEALED_FORMAT, COMPACTED_FORMAT = 1, 2
"""The formats without numbers, of a sealing and of a compaction, which can still be read."""
MAX_MANIFEST_BYTES = 64 << 20
MAX_FILE_BYTES = 4 << 30
SPARE_NUMBERS = 1 << 40
"""A number is at most this much more than twice the hops: nobody can use up the numbers that a server needs."""
_HEX = re.compile(r"[0-9a-f]{64}")


class RetainedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The fields of the messages whose bytes a compaction removed from a file: a Parquet file beside it.

    `signature`, in hex, is that of whoever ran the compaction: see `retained`.
    """

    path: str
    rows: int
    bytes: int
    sha256: str
    signature: str = ""


class EarlierCheckpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A checkpoint of a manifest that a compaction replaced.

    `proof` shows that its hops are the first ones of the checkpoint over `end` hops, which is in the same manifest.
    """

    note: str
    end: int
    proof: list[str]


class SealedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One Parquet file: a perfect subtree of the journal's tree.

    A compaction adds `retained`, and in `bytes_until_us` the earliest expiry of the remaining bytes; 0 is unknown.
    """

    path: str
    first_seq: int
    rows: int
    first_at_us: int
    last_at_us: int
    bytes: int
    sha256: str
    root: str
    retained: RetainedFile | None = msgspec.field(default=None, name="kept")
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
    """What one sealing or compaction added: its files, and the signed checkpoint that their roots lead to.

    `frontier` has the peaks of the tree after the last file, so that the next sealing need not read earlier manifests.
    A compaction keeps the checkpoints of the manifests that it replaced in `earlier`. `generation` belongs to format 2.
    """

    format: int
    server: str
    fabric: str
    key: str
    checkpoint: str
    frontier: list[str]
    files: list[SealedFile]
    number: int | None = None
    replaces: list[int | str] = []
    generation: int = 0
    earlier: list[EarlierCheckpoint] = []

    def __post_init__(self) -> None:
        check_name(self.fabric)

    @property
    def id(self) -> int | str:
        """How `replaces` names it."""
        return range_manifest_name(self.first_seq, self.end, self.generation) if self.number is None else self.number

    @property
    def is_compaction(self) -> bool:
        """True if it replaced others and added no hops."""
        return bool(self.replaces) or self.generation > 0

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


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode a manifest."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1)


def parse_manifest(key: str, data: bytes) -> Manifest:
    """Parse a manifest; JournalDamaged if it is incomplete, contradicts itself or names unexpected objects."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise JournalDamaged(f"{key} has over {MAX_MANIFEST_BYTES} bytes, expected at most {MAX_MANIFEST_BYTES}")
    try:
        manifest = _decoder.decode(data)
        if not manifest.files:
            raise JournalDamaged(f"{key} announces no file")
        signed, tree = manifest.signed_checkpoint(), manifest.tree()
    except (msgspec.DecodeError, CheckpointError, ValueError) as error:
        raise JournalDamaged(f"{key} is not a manifest: {error}") from None
    _check_identity(key, manifest)
    _check_fabric(key, manifest)
    position = manifest.first_seq
    for file in manifest.files:
        if file.first_seq != position or file.rows < 1 or file.rows & (file.rows - 1) or position % file.rows:
            raise JournalDamaged(f"{key}: {file.path[:200]!r} is not the subtree that follows hop {position}")
        _check_file(key, manifest, file)
        position = file.end
    if signed.size != position or signed.checkpoint.origin != manifest.server or signed.root != tree.root():
        raise JournalDamaged(f"{key}: the checkpoint is not that of its files")
    return manifest


def _check_identity(key: str, manifest: Manifest) -> None:
    """Check that format, number and key match, and that it replaces only older ones."""
    is_numbered = manifest.format == MANIFEST_FORMAT
    expected = COMPACTED_FORMAT if manifest.generation else SEALED_FORMAT
    if is_numbered != (manifest.number is not None) or (is_numbered and manifest.generation):
        raise JournalDamaged(f"{key} has manifest format {manifest.format} with the fields of another")
    if not is_numbered and manifest.format != expected:
        raise JournalDamaged(f"{key} has manifest format {manifest.format}, expected {expected} or {MANIFEST_FORMAT}")
    if manifest.number is None:
        own = f"{manifest_prefix(manifest.server)}{manifest.id}.json"
    else:
        if not 0 <= manifest.number <= MAX_NUMBER:
            raise JournalDamaged(f"{key} has a number that is not from 0 to {MAX_NUMBER}")
        if manifest.number > 2 * manifest.end + SPARE_NUMBERS:
            raise JournalDamaged(f"{key} has a number far beyond what its {manifest.end} hops explain")
        own = manifest_key(manifest.server, manifest.number)
        if any(isinstance(other, int) and other >= manifest.number for other in manifest.replaces):
            raise JournalDamaged(f"{key} replaces manifests that are not older than it")
    for other in manifest.replaces:
        if isinstance(other, str) and parse_manifest_key(f"{other}.json") is None:
            raise JournalDamaged(f"{key} replaces {other[:200]!r}, which is no name of a manifest")
    if key != own:
        raise JournalDamaged(f"{key} is named after other hops or another server than it announces")


def _check_fabric(key: str, manifest: Manifest) -> None:
    """The signed name of a server tells its fabric; no signature commits to the field `fabric`."""
    try:
        own = name_of(manifest.server)
    except ValueError as error:
        raise JournalDamaged(f"{key}: {error}") from None
    if manifest.fabric != own:
        raise JournalDamaged(f"{key} announces hops of fabric {manifest.fabric}, but {manifest.server} is of {own}")


def _check_file(key: str, manifest: Manifest, file: SealedFile) -> None:
    """Check that a file and its companions are where a sealing of these hops puts them, and its hashes and sizes."""
    try:
        check_data_key(file.path, manifest.server, manifest.fabric, file.first_seq, file.end)
        if file.retained is not None and file.retained.path != retained_key(file.path):
            raise JournalDamaged(f"{file.retained.path[:200]!r} is not what is retained of {file.path}")
    except JournalDamaged as error:
        raise JournalDamaged(f"{key}: {error}") from None
    sizes, hashes = [file.bytes], [file.root, file.sha256]
    if file.retained is not None:
        sizes.append(file.retained.bytes)
        hashes.append(file.retained.sha256)
    if not all(_HEX.fullmatch(text) for text in hashes):
        raise JournalDamaged(f"{key}: a hash of {file.path} does not have 64 hexadecimal digits")
    if not all(0 < size <= MAX_FILE_BYTES for size in sizes):
        raise JournalDamaged(f"{key}: {file.path} has {max(sizes)} bytes, expected 1 to {MAX_FILE_BYTES}")
