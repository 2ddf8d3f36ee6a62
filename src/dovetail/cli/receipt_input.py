"""Input of the commands of `dovetail receipt`: sources, receipts, checkpoints, keys, addresses and times."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dovetail.cli.client_options import each_of, parse_time_text, read_context
from dovetail.model.address import URI_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dovetail.journal.hop_source import HopSource
    from dovetail.model.address import Address
    from dovetail.receipt.consistency import View
    from dovetail.receipt.proof import Proof
    from dovetail.tlog.checkpoint import SignedCheckpoint
    from dovetail.tlog.keys import Verifier

T = TypeVar("T")


def is_file(subject: str) -> bool:
    """True if this names a file, existing or not; addresses contain neither slash nor dot."""
    return not subject.startswith(URI_PREFIX) and (Path(subject).exists() or "/" in subject or "." in subject)


def default_file(address: Address) -> Path | None:
    """Where a receipt goes if no file is named: a file named after its message, or stdout if that is no terminal."""
    return Path(f"{address.hex()[:8]}.receipt") if sys.stdout.isatty() else None


def trusted_paths(given: list[Path] | None) -> list[Path]:
    """The given files of trusted keys, or those of the context."""
    from dovetail.model.errors import UsageError

    trusted = each_of(given, read_context().trust)
    if not trusted:
        raise UsageError("no trusted keys: give --trust KEYS, or save them in a context")
    return trusted


def choose_sources(journals: list[Path] | None, lake: str | None) -> tuple[list[Path], str | None]:
    """Where to search: the given sources, or else the journals of the context and its lake, if any."""
    from dovetail.journal.folder import find_journals

    if journals or lake is not None:
        return [each for path in journals or () for each in find_journals(path)], lake
    known = read_context()
    journals = [each for path in known.journals for each in find_journals(Path(path))]
    has_lake = known.lake is not None and ("://" in known.lake or Path(known.lake).is_dir())
    return journals, known.lake if has_lake else None


@contextlib.contextmanager
def open_sources(journals: list[Path] | None, lake: str | None, date: str | None) -> Iterator[list[HopSource]]:
    """The journals and the servers of the lake, or those of the context; for a server in both, its journal is used."""
    from dovetail.model.errors import UsageError
    from dovetail.receipt import sources

    journals, lake = choose_sources(journals, lake)
    if not journals and lake is None:
        raise UsageError("name at least one --journal, or a --lake, or save them in a context")
    if date is not None and lake is None:
        raise UsageError("--date needs --lake")
    with sources.open_sources(journals, lake, None if date is None else _parse_day(date)) as opened:
        yield opened


def find_message(sources: Sequence[HopSource], text: str) -> Address:
    """The message with this name. For an id, the bytes of all messages are searched, which may take a while."""
    from dovetail.cli.progress import Bar
    from dovetail.receipt import sources as searched

    with Bar(f"look for {text[:40]}", "hops") as bar:
        return searched.find_message(sources, text, bar.update)


def read_checkpoints(path: Path) -> list[SignedCheckpoint]:
    """The checkpoints in a file: a note, or those of a receipt. They are not verified here."""
    from dovetail.receipt.format import decode_receipt, notes_of
    from dovetail.tlog.checkpoint import parse_checkpoint

    with _errors_of(path):
        data = read_file(path)
        if data.startswith(b"{"):
            return [parse_checkpoint(note.checkpoint) for note in notes_of(decode_receipt(data))]
        return [parse_checkpoint(_read_note(data))]


def read_other(path: Path, trusted: Sequence[Verifier]) -> View | Proof:
    """What a file proves about journals: a receipt, which must be valid, or a note signed by a trusted key."""
    from dovetail.receipt.consistency import View
    from dovetail.receipt.verify import verify_receipt
    from dovetail.tlog.checkpoint import verify_checkpoint

    with _errors_of(path):
        data = read_file(path)
        if data.startswith(b"{"):
            return verify_receipt(data, trusted)
        return View(verify_checkpoint(_read_note(data), trusted).checkpoint)


def _read_note(data: bytes) -> str:
    from dovetail.model.errors import CheckpointError, ReceiptError
    from dovetail.tlog.checkpoint import MAX_NOTE_BYTES, parse_checkpoint

    note = data[: MAX_NOTE_BYTES + 1].decode(errors="replace")
    try:
        return parse_checkpoint(note).note
    except CheckpointError as error:
        raise ReceiptError(f"neither a receipt nor a checkpoint: {error}") from None


@contextlib.contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """Make errors in the block name the file."""
    from dovetail.model.errors import CheckpointError, ReceiptError

    try:
        yield
    except (CheckpointError, ReceiptError) as error:
        raise ReceiptError(f"{path}: {error}") from None


def merge_note_files(paths: Sequence[Path], keys: Sequence[Verifier]) -> list[SignedCheckpoint]:
    """Cosigned checkpoints by server; several notes of one checkpoint are merged."""
    from dovetail.receipt.witness import merge_notes

    by_server: dict[str, list[str]] = {}
    for path in paths:
        for signed in read_checkpoints(path):
            by_server.setdefault(signed.checkpoint.origin, []).append(signed.note)
    return [merge_notes(notes, keys) for notes in by_server.values()]


def load_keys(paths: Sequence[Path]) -> tuple[Verifier, ...]:
    from dovetail.keys import load_verifier_keys

    return load_verifier_keys(*paths)


def _parse_day(text: str) -> tuple[int, int]:
    first = parse_time_text(text)
    return first, first + 86_400_000_000


def read_file(path: Path) -> bytes:
    """A file's bytes, at most one more than the limit; ReceiptError if it cannot be read."""
    from dovetail.model.errors import ReceiptError
    from dovetail.receipt.format import MAX_RECEIPT_BYTES

    try:
        with path.open("rb") as file:
            return file.read(MAX_RECEIPT_BYTES + 1)
    except OSError as error:
        raise ReceiptError(f"file: it cannot be read: {error.strerror or error}") from None
