"""Input of the commands of `dovetail journal`: journals, agreements, checkpoints, and what others know of a journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.cli.client_options import each_of, read_context

if TYPE_CHECKING:
    from pathlib import Path

    from dovetail.journal.continuity import Known
    from dovetail.model.fabric import Agreement
    from dovetail.tlog.checkpoint import SignedCheckpoint
    from dovetail.tlog.keys import Verifier


def find_given(given: list[Path] | None) -> list[Path]:
    """The journals named, and those in the directories named."""
    from dovetail.journal.folder import PEER_JOURNAL, SUFFIX, find_journals
    from dovetail.model.errors import UsageError

    paths = each_of(given, () if given else read_context().journals)
    if not paths:
        raise UsageError("which journals? name them, or save them in a context")
    found = [each for path in paths for each in find_journals(path)]
    if not found:
        raise UsageError(f"no *{SUFFIX} or {PEER_JOURNAL} files in {', '.join(map(str, paths))}")
    return found


def one_journal(given: Path | None) -> Path:
    """The journal named, the only one in the directory named, or that of the context."""
    from dovetail.model.errors import UsageError

    found = find_given(None if given is None else [given])
    if len(found) > 1:
        raise UsageError(f"{given or 'the context'} has {len(found)} journals, expected one: name it")
    return found[0]


def known_elsewhere(path: Path, lake: str | None, seen: Path | None) -> list[Known]:
    """What a lake and a witness know of a journal. Refuses a path that is no lake; says if a lake knows nothing."""
    from dovetail.cli.output import say
    from dovetail.journal.reader import read_identity
    from dovetail.lake.known import known_to_lake
    from dovetail.lake.location import open_store
    from dovetail.lake.reader import open_lake

    identity = read_identity(path)
    sealed = [] if lake is None else known_to_lake(open_store(lake), identity.verifier)
    if lake is not None and not sealed:
        open_lake(open_store(lake))
        say(f"{path}: nothing of {identity.server} is sealed in {lake}: not compared")
    return [*sealed, *seen_by_witness(seen, identity.verifier)]


def seen_by_witness(seen: Path | None, verifier: Verifier) -> list[Known]:
    """What a witness knows of the journal with this key."""
    from dovetail.receipt.witness_memory import known_to_witness

    return [] if seen is None else known_to_witness(seen, verifier)


def load_agreement(path: Path | None, server: str) -> Agreement | None:
    """The agreement of the community of a server, from a file."""
    from dovetail.fabrics import fabric_of
    from dovetail.model.errors import UsageError

    if path is None:
        return None
    fabric = fabric_of(server)
    try:
        agreement = fabric.parse_agreements(path.read_bytes()).get(fabric.community(server))
    except (OSError, ValueError) as error:
        raise UsageError(f"--swarm {path}: {error}") from None
    if agreement is None:
        raise UsageError(f"--swarm {path}: it is not the agreement of {fabric.community(server)}")
    return agreement


def load_checkpoint(path: Path | None) -> SignedCheckpoint | None:
    """A checkpoint that was kept elsewhere."""
    from dovetail.model.errors import UsageError
    from dovetail.tlog.checkpoint import MAX_NOTE_BYTES, parse_checkpoint

    if path is None:
        return None
    try:
        with path.open("rb") as file:
            return parse_checkpoint(file.read(MAX_NOTE_BYTES + 1).decode())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--since {path}: {error}") from None
