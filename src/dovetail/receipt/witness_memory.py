"""What a witness remembers, on disk: the last note it cosigned of each server, one file each."""

from __future__ import annotations

from pathlib import Path

from dovetail.journal.durable_file import replace_file
from dovetail.lake.layout import server_slug
from dovetail.model.errors import CheckpointError, ReceiptError
from dovetail.tlog.checkpoint import MAX_NOTE_BYTES, Checkpoint, parse_checkpoint

_SUFFIX = ".note"


def remembered_checkpoints(folder: Path) -> list[Checkpoint]:
    """All checkpoints that were cosigned last; none where there is no such folder yet."""
    checkpoints = []
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        with path.open("rb") as file:
            data = file.read(MAX_NOTE_BYTES + 1)
        try:
            checkpoints.append(parse_checkpoint(data.decode(errors="replace")).checkpoint)
        except CheckpointError as error:
            raise ReceiptError(f"{path} is not a checkpoint: {error}") from None
    return checkpoints


def remember(folder: Path, note: str) -> None:
    """Keep a cosigned note durably in place of the server's last one; call it before the note is handed out."""
    folder.mkdir(parents=True, exist_ok=True)
    origin = parse_checkpoint(note).checkpoint.origin
    replace_file(folder / f"{server_slug(origin)}{_SUFFIX}", note.encode())
