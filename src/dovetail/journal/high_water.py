"""The high-water mark of a journal: how far it was written, in a small file beside the database.

A database cannot tell that it was truncated: SQLite takes a damaged log for a shorter one, and an old copy is intact.
So the writer also records the journal's size elsewhere, and it is compared on opening. A mark behind its journal is
harmless; a mark ahead of it means that hops are gone.

    with every commit        written to slot 0, not fsynced: it survives the end of the process
    with every checkpoint    also written to slot 1 or 2, alternating, and fsynced

Each slot has a checksum: a torn slot is ignored, and one of slots 1 and 2 is always intact. A slot states how many hops
were written and how many were fsynced. Hops that were only written count until the machine reboots, since a power cut
may have lost them.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import stat
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dovetail.keys.files import PRIVATE_MODE
from dovetail.model.errors import JournalError
from dovetail.tlog.keys import Verifier

SUFFIX = ".mark"
SLOTS = 3
SLOT_BYTES = 4096
MAGIC = b"DOVEMRK1"
_NO_BOOT = bytes(16)
_SLOT = struct.Struct("<8s8s16sQQQIQQQQ32s")
_CHECKSUM = struct.Struct("<I")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a journal was written.

    `size` hops were written, the last of them by the commit that starts at `commit` and has this `crc`, with the given
    counts of messages and names. `synced` hops were fsynced, `signed` hops were signed with this `root`.
    """

    is_of_this_boot: bool = True
    serial: int = 0
    size: int = 0
    commit: int = 0
    crc: int = 0
    messages: int = 0
    names: int = 0
    synced: int = 0
    signed: int = 0
    root: bytes = bytes(32)


def mark_path(journal: Path) -> Path:
    """The path of a journal's mark."""
    return journal.with_name(journal.name + SUFFIX)


@functools.cache
def boot_id() -> bytes:
    """Identifies one boot of the machine; zeros if the system does not provide it."""
    try:
        return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
    except (OSError, ValueError):
        return _NO_BOOT


def read_mark(journal: Path, verifier: Verifier) -> Mark | None:
    """The mark of the journal with this key; None if there is no readable one."""
    slots = _read_slots(journal, _key_of(verifier))
    return max((mark for mark in slots if mark is not None), key=lambda mark: mark.serial, default=None)


class MarkFile:
    """The writer's side of a mark. Not thread-safe."""

    def __init__(self, descriptor: int, key: bytes, slots: list[Mark]) -> None:
        self._descriptor = descriptor
        self._key = key
        last = max(slots, key=lambda mark: mark.serial)
        self._serial = last.serial
        self._synced, self._signed, self._root = last.synced, last.signed, last.root
        self._newer_slot = 1 if slots[1].serial > slots[2].serial else 2
        self._data = b""

    @classmethod
    def open(cls, journal: Path, verifier: Verifier) -> Self:
        """Open or create the mark of a journal; the caller has compared the two."""
        descriptor = open_beside(mark_path(journal), os.O_RDWR | os.O_CREAT)
        key = _key_of(verifier)
        return cls(descriptor, key, [mark or Mark() for mark in _read_slots(journal, key)])

    def note(self, size: int, commit: int, crc: int, messages: int, names: int, *, is_synced: bool) -> None:
        """Record committed hops."""
        self._serial += 1
        if is_synced:
            self._synced = size
        data = _SLOT.pack(
            MAGIC,
            self._key,
            boot_id(),
            self._serial,
            size,
            commit,
            crc,
            messages,
            names,
            self._synced,
            self._signed,
            self._root,
        )
        self._data = data + _CHECKSUM.pack(zlib.crc32(data))
        self._write(self._data, 0)

    def note_signed(self, size: int, root: bytes) -> None:
        """Record that the first `size` hops are signed with this root; the next `note` and `sync` write it."""
        self._signed, self._root = size, root

    def sync(self) -> None:
        """Make what was recorded durable."""
        self._newer_slot = 3 - self._newer_slot
        self._write(self._data, self._newer_slot * SLOT_BYTES)
        self._sync()

    def close(self) -> None:
        """Release the file; idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, data: bytes, offset: int) -> None:
        try:
            os.pwrite(self._descriptor, data, offset)
        except OSError as error:
            # a mark that lags behind is harmless, and the journal itself reports a full disk
            if error.errno not in _NO_ROOM:
                raise

    def _sync(self) -> None:
        os.fsync(self._descriptor)


def open_beside(path: Path, flags: int) -> int:
    """Open a file that belongs to a journal, for its owner only; raises JournalError if it leads elsewhere.

    Otherwise anyone who can create names in the directory could make the server write to any of its files, or block
    forever.
    """
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, PRIVATE_MODE)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise JournalError(f"{path} is a symbolic link, expected a file") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise JournalError(f"{path} is not a file")
    return descriptor


def _read_slots(journal: Path, key: bytes) -> list[Mark | None]:
    try:
        with open(open_beside(mark_path(journal), os.O_RDONLY), "rb") as file:
            data = file.read(SLOTS * SLOT_BYTES)
    except OSError:
        data = b""
    return [_decode(data[slot * SLOT_BYTES :], key) for slot in range(SLOTS)]


def _key_of(verifier: Verifier) -> bytes:
    return hashlib.sha256(verifier.text().encode()).digest()[:8]


def _decode(data: bytes, key: bytes) -> Mark | None:
    """Decode the mark in a slot; None if it is torn, empty, or another journal's."""
    if len(data) < _SLOT.size + _CHECKSUM.size:
        return None
    magic, owner, boot, *fields = _SLOT.unpack_from(data)
    (checksum,) = _CHECKSUM.unpack_from(data, _SLOT.size)
    if magic != MAGIC or owner != key or zlib.crc32(data[: _SLOT.size]) != checksum:
        return None
    return Mark(boot == boot_id() != _NO_BOOT, *fields)
