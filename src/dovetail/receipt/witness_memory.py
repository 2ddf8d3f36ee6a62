"""Cosigned notes on disk, one file each: a witness's state, and the cosigned notes returned to servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from dovetail.journal.continuity import Known
from dovetail.journal.durable_file import replace_file
from dovetail.lake.layout import server_slug
from dovetail.model.errors import CheckpointError, ReceiptError
from dovetail.receipt.proof import Policy, check_trust
from dovetail.tlog.checkpoint import MAX_NOTE_BYTES, Checkpoint, SignedCheckpoint, parse_checkpoint, verify_checkpoint
from dovetail.tlog.keys import Verifier
from dovetail.tlog.note import check_signatures, select_signatures

_SUFFIX = ".note"


def remembered_checkpoints(folder: Path) -> list[Checkpoint]:
    """The last cosigned checkpoint of each server; none if there is no such folder yet."""
    return [signed.checkpoint for _, signed in _remembered(folder)]


def known_to_witness(folder: Path, verifier: Verifier) -> list[Known]:
    """What a witness knows of the journal with this key, from the checkpoints it cosigned last."""
    known = []
    for path, signed in _remembered(folder):
        if signed.checkpoint.origin == verifier.name:
            try:
                verify_checkpoint(signed.note, [verifier])
            except CheckpointError as error:
                raise ReceiptError(f"{path}: {error}") from None
            known.append(Known.of(f"the witness ({path})", signed.checkpoint))
    return known


class Witnessed(NamedTuple):
    """A trusted witness saw the first `size` hops of a server's journal at this time, and that it had only grown."""

    size: int
    witness: str
    at_s: int


def newest_cosignatures(folder: Path, trusted: Sequence[Verifier], now_us: int) -> dict[str, Witnessed]:
    """By server, the newest cosignature of a trusted witness.

    Skips files that prove none: no trusted server or witness, altered, or from the future.
    """
    newest: dict[str, Witnessed] = {}
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        try:
            text, keys = select_signatures(_read(path), trusted)
            signatory = check_trust(check_signatures(text, tuple(keys)), frozenset(trusted), Policy(now_us=now_us))
        except (ReceiptError, OSError):
            continue
        origin, size = signatory.checkpoint.origin, signatory.checkpoint.size
        looks = [Witnessed(size, each.witness.name, each.at_s) for each in signatory.witnesses]
        looks += [newest[origin]] if origin in newest else []
        if looks:
            newest[origin] = max(looks, key=lambda look: (look.at_s, look.size, look.witness))
    return newest


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(MAX_NOTE_BYTES + 1).decode(errors="replace")


def _remembered(folder: Path) -> Iterator[tuple[Path, SignedCheckpoint]]:
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        try:
            yield path, parse_checkpoint(_read(path))
        except CheckpointError as error:
            raise ReceiptError(f"{path} is not a checkpoint: {error}") from None


def remember(folder: Path, note: str) -> None:
    """Durably replace the server's last cosigned note; call this before the note is returned to anyone."""
    folder.mkdir(parents=True, exist_ok=True)
    origin = parse_checkpoint(note).checkpoint.origin
    replace_file(folder / f"{server_slug(origin)}{_SUFFIX}", note.encode())
