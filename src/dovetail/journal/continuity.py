"""Checks that a journal still has everything it is known to have had: it was not truncated or rolled back to a copy.

The journal is compared with its high-water mark and, if given, with checkpoints held by others: manifests of a lake,
notes of witnesses. A journal that is shorter, or whose hops have a different root, must not be written: its server
would sign a second history over the same positions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from dovetail.journal.database import BLOCK_LEVEL, check_format, connect_reader, is_new
from dovetail.journal.high_water import Mark, mark_path, read_mark
from dovetail.journal.reader import JournalReader
from dovetail.journal.stored_tree import JournalTree
from dovetail.model.errors import CheckpointError, JournalDamaged, JournalRolledBack
from dovetail.tlog.checkpoint import Checkpoint, verify_checkpoint
from dovetail.tlog.keys import Verifier
from dovetail.tlog.tree import HASH_BYTES, Frontier, aligned_ranges


class Known(NamedTuple):
    """What is known of a journal: it had `size` hops, with this root if known."""

    where: str
    size: int
    root: bytes | None = None

    @classmethod
    def of(cls, where: str, checkpoint: Checkpoint) -> Known:
        """What a checkpoint shows."""
        return cls(where, checkpoint.size, checkpoint.root)


def check_writable(path: Path, verifier: Verifier, known: Iterable[Known] = ()) -> None:
    """Check that the journal with this key may be written; raises JournalRolledBack or JournalDamaged if it must not.

    Reads and compares its end, see `check_end`. A journal that does not exist may be created, unless it existed before.
    """
    reader = _open(path)
    if reader is None:
        _check_never_written(path, verifier)
        return
    with reader:
        if reader.identity.has_mark and reader.size and not mark_path(path).exists():
            raise JournalRolledBack(
                f"{path} comes without its high-water mark ({mark_path(path).name}), so it may be an old copy; "
                f"{_advice(path)}"
            )
        check_continuity(reader, known)
        check_end(reader)


@contextlib.contextmanager
def advising(path: Path) -> Iterator[None]:
    """Let damage that a server finds when it starts name the file and say what to do."""
    try:
        yield
    except JournalDamaged as error:
        named = f"{error}" if f"{path}" in f"{error}" else f"{path}: {error}"
        raise JournalDamaged(f"{named}; {_advice(path)}") from error


def _open(path: Path) -> JournalReader | None:
    """Open a reader; None if nothing has been written yet."""
    # SQLite has a rollback journal only while the file is being created
    if not path.exists() or not path.stat().st_size or path.with_name(f"{path.name}-journal").exists():
        return None
    connection = connect_reader(path)
    try:
        if is_new(connection, path):
            connection.close()
            return None
        check_format(connection, path)
        return JournalReader(connection, path)
    except BaseException:
        connection.close()
        raise


def _check_never_written(path: Path, verifier: Verifier) -> None:
    if mark_path(path).exists() and mark_path(path).stat().st_size:
        mark = read_mark(path, verifier)
        if mark is None or mark.size:
            held = "hops" if mark is None else f"{mark.size} hops"
            raise JournalRolledBack(
                f"{path} is gone or empty, and had {held} ({mark_path(path).name}); {_advice(path)}; a new server "
                "needs a new path"
            )


def check_continuity(reader: JournalReader, known: Iterable[Known] = ()) -> None:
    """Raise JournalRolledBack if the journal is shorter than, or differs from, its mark or anything in `known`."""
    for detail in find_breaks(reader, known):
        raise JournalRolledBack(f"{reader.path} {detail}; {_advice(reader.path)}")


def find_breaks(reader: JournalReader, known: Iterable[Known] = ()) -> Iterator[str]:
    """Yield what contradicts the journal, each as the end of a sentence that starts with its name."""
    identity = reader.identity
    # read the mark first: a journal that is being written is then never behind it
    mark = read_mark(reader.path, identity.verifier)
    if mark is not None:
        yield from _find_behind_mark(reader, mark)
        if mark.size and not identity.has_mark:
            yield f"says that it has no high-water mark, and has one ({mark_path(reader.path).name})"
    elif identity.has_mark and reader.size and mark_path(reader.path).exists():
        yield f"has a high-water mark that cannot be read ({mark_path(reader.path).name})"
    for each in known:
        yield from _find_behind(reader, each)


def check_end(reader: JournalReader) -> None:
    """Raise JournalDamaged if the last checkpoint does not match the hops, or hops after it cannot be read.

    That is where torn or lost writes show. Everything before it is left to `verify_journal`.
    """
    tree = JournalTree(reader)
    latest = reader.latest_checkpoint()
    signed = 0
    if latest is not None:
        signed = latest.size
        try:
            verify_checkpoint(latest.note, [reader.identity.verifier])
        except CheckpointError as error:
            raise JournalDamaged(f"{reader.path}: checkpoint over {signed} hops: {error}") from None
        if signed > reader.size or root_at(reader, signed) != latest.root:
            raise JournalDamaged(f"{reader.path}: hops 0 to {signed - 1} are not those that were signed")
    unsigned = sum(map(len, tree.leaf_hashes(signed, reader.size))) // HASH_BYTES
    if signed + unsigned != reader.size:
        raise JournalDamaged(f"{reader.path}: hops {signed} to {reader.size - 1} are not all there")


def root_at(reader: JournalReader, size: int) -> bytes:
    """The root over the first `size` hops, from the stored blocks and the hops after them."""
    tree, root = JournalTree(reader), Frontier()
    blocks = min(size, tree.stored_size) >> BLOCK_LEVEL << BLOCK_LEVEL
    for start, level in aligned_ranges(0, blocks):
        root.append(tree.node(level, start >> level), level)
    for leaves in tree.leaf_hashes(blocks, size):
        for start in range(0, len(leaves), HASH_BYTES):
            root.append(leaves[start : start + HASH_BYTES])
    return root.root()


def _find_behind_mark(reader: JournalReader, mark: Mark) -> Iterator[str]:
    size, name = reader.size, f"its high-water mark ({mark_path(reader.path).name})"
    bound = mark.size if mark.is_of_this_boot else mark.synced
    if size < bound:
        yield from _find_behind(reader, Known(name, bound))
        return
    if 0 < mark.size <= size:
        row = reader.one("SELECT first_seq + count, crc FROM commits WHERE first_seq = ?", (mark.commit,))
        if row != (mark.size, mark.crc):
            yield f"has other hops before hop {mark.size} than {name} knows"
            return
        if reader.message_count < mark.messages or reader.name_count < mark.names:
            yield f"lacks messages or counterparts that {name} knows"
            return
    latest = reader.latest_checkpoint()
    # the checkpoint itself is present: whether its hops are is left to `check_end`
    if mark.signed and (latest is None or (latest.size, latest.root) != (mark.signed, mark.root)):
        yield from _find_behind(reader, Known(name, mark.signed, mark.root))


def _find_behind(reader: JournalReader, known: Known) -> Iterator[str]:
    size = reader.size
    if size < known.size:
        yield f"has {size} hops, and {known.where} knows of {known.size}: its end was cut off or it is an old copy"
    elif known.root is not None and root_at(reader, known.size) != known.root:
        yield f"has other hops among its first {known.size} than {known.where} knows"


def _advice(path: Path) -> str:
    return f"bring back the newest copy, or see what `dovetail journal recover {path}` can do"
