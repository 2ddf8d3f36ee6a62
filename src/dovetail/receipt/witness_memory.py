"""What a witness remembers, on disk: the last note it cosigned of each server, one file each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dovetail.journal.continuity import Known
from dovetail.journal.durable_file import replace_file
from dovetail.lake.layout import server_slug
from dovetail.model.errors import CheckpointError, ReceiptError
from dovetail.tlog.checkpoint import MAX_NOTE_BYTES, Checkpoint, SignedCheckpoint, parse_checkpoint, verify_checkpoint
from dovetail.tlog.keys import Verifier

_SUFFIX = ".note"


def remembered_checkpoints(folder: Path) -> list[Checkpoint]:
    """All checkpoints that were cosigned last; none where there is no such folder yet."""
    return [signed.checkpoint for _, signed in _remembered(folder)]


def known_to_witness(folder: Path, verifier: Verifier) -> list[Known]:
    """What a witness knows of the journal with this key: of those that it cosigned last."""
    known = []
    for path, signed in _remembered(folder):
        if signed.checkpoint.origin == verifier.name:
            try:
                verify_checkpoint(signed.note, [verifier])
            except CheckpointError as error:
                raise ReceiptError(f"{path}: {error}") from None
            known.append(Known.of(f"the witness ({path})", signed.checkpoint))
    return known


def _remembered(folder: Path) -> Iterator[tuple[Path, SignedCheckpoint]]:
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        with path.open("rb") as file:
            data = file.read(MAX_NOTE_BYTES + 1)
        try:
            yield path, parse_checkpoint(data.decode(errors="replace"))
        except CheckpointError as error:
            raise ReceiptError(f"{path} is not a checkpoint: {error}") from None


def remember(folder: Path, note: str) -> None:
    """Keep a cosigned note durably in place of the server's last one; call it before the note is handed out."""
    folder.mkdir(parents=True, exist_ok=True)
    origin = parse_checkpoint(note).checkpoint.origin
    replace_file(folder / f"{server_slug(origin)}{_SUFFIX}", note.encode())
