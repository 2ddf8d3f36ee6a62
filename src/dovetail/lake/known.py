"""What a lake knows of a journal: how far it was sealed, and with which root."""

from __future__ import annotations

from dovetail.journal.continuity import Known
from dovetail.journal.reader import Identity
from dovetail.lake.manifest import Manifest
from dovetail.lake.snapshot import read_head
from dovetail.lake.store import Store
from dovetail.model.errors import CheckpointError, JournalDamaged, JournalError
from dovetail.tlog.checkpoint import verify_checkpoint


def known_to_lake(store: Store, identity: Identity) -> list[Known]:
    """What the lake knows of the journal with this identity; empty where nothing of it is sealed."""
    manifest = read_head(store, identity.server).manifest
    return [] if manifest is None else [known_by(manifest, identity, f"the lake {store}")]


def known_by(manifest: Manifest, identity: Identity, where: str) -> Known:
    """What a manifest tells of a journal; JournalError where it is of another key, JournalDamaged where not signed."""
    if manifest.key != identity.verifier.text():
        raise JournalError(f"{where} has hops of {identity.server} under another key")
    try:
        signed = verify_checkpoint(manifest.checkpoint, [identity.verifier])
    except CheckpointError as error:
        raise JournalDamaged(f"{where}: the newest manifest of {identity.server}: {error}") from None
    return Known.of(where, signed.checkpoint)
