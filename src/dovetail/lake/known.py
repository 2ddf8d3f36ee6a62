"""What a lake knows of a journal: how far it is sealed, and with which root."""

from __future__ import annotations

import logging

from dovetail.journal.continuity import Known
from dovetail.lake.head import Head, read_head
from dovetail.lake.store import Store
from dovetail.tlog.keys import Verifier

log = logging.getLogger("dovetail.lake")


def known_to_lake(store: Store, verifier: Verifier) -> list[Known]:
    """What the lake knows of the journal with this key; empty if nothing of it is sealed."""
    return known_by(read_head(store, verifier), store)


def known_by(head: Head, store: Store) -> list[Known]:
    """What a server signed of all that was read for its head; forged and unreadable manifests are logged."""
    for key in head.ignored:
        log.error("%s: %s is forged or cannot be read, and is ignored; find out who can write to the lake", store, key)
    return [Known.of(f"the lake {store}", manifest.signed_checkpoint().checkpoint) for manifest in head.signed]
