"""What of earlier runs still holds, and what has to be read again.

Silver only grows, so a run reads what is new. But a file that was missing or damaged may have been restored, a manifest
that nobody believed may have been removed or replaced, and other keys may be trusted. The tables must always be those
of an audit that reads the lake for the first time:

- What was not readable and is another object now, or was left out because it kept changing, is read again.
- A manifest that was never believed leaves nothing behind when it is gone. Neither does what was false in one that was
  believed, once that is corrected, nor a compaction, if all that it replaced is back. Any other stays evidence.
- If silver has rows that are not believed any more, or that differ from the sealed ones and those can be read now,
  everything is read again. So it is if fields can be read now that a compaction retained.

Whoever can write to the lake can alter and restore files as often as they like. So what was restored makes runs read
everything only `MAX_REREADS` times in `REREADS_S`. After that it has to wait; its finding stays as long.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from dovetail.audit.active_manifests import active_facts, false_manifests
from dovetail.audit.failures import NOTHING, LeftOut
from dovetail.audit.ingest_log import (
    CHANGING,
    UNCOMMITTED,
    BatchFacts,
    FileFact,
    ManifestFact,
    learn_manifest,
    present_files,
)
from dovetail.audit.proven_files import committed_paths, proven_paths
from dovetail.audit.sources import announced_files
from dovetail.lake.layout import manifest_name, manifest_prefix
from dovetail.lake.manifest import MAX_FILE_BYTES, SealedFile
from dovetail.lake.retained import inspect_signed, is_signed
from dovetail.lake.snapshot import manifest_tags
from dovetail.lake.store import Entry, Store
from dovetail.lake.writer import sha256_of
from dovetail.model.errors import JournalDamaged
from dovetail.tlog.keys import Verifier

MAX_REREADS = 3
REREADS_S = 86_400


class Plan(NamedTuple):
    """`known` are the facts of earlier runs that still hold, `new` the manifests to process with them.

    `is_due` if there is anything to read; `is_anew` if what silver has must be dropped first. `is_reread` if that is
    because something was restored, which counts towards `MAX_REREADS`.
    """

    known: BatchFacts
    new: list[ManifestFact]
    is_due: bool
    is_anew: bool
    is_reread: bool = False


class Listing(NamedTuple):
    """The manifests of a lake with their tags, and its files."""

    tags: Mapping[str, str]
    files: Mapping[str, Entry]


def list_lake(lake: Store) -> Listing:
    """What is in the lake now."""
    return Listing(manifest_tags(lake), present_files(lake))


def plan_reading(
    lake: Store,
    before: BatchFacts,
    listed: Listing,
    trusted: Sequence[Verifier],
    *,
    is_judged_alike: bool,
    left_out: LeftOut = NOTHING,
    may_reread: Callable[[], bool] = lambda: True,
) -> Plan:
    """Compare the facts of earlier runs with the lake; `is_judged_alike` if the last one had the same settings.

    `may_reread` tells whether everything may be read again for what was restored.
    """
    manifests = _remembered(lake, before, listed.tags, trusted)
    undone = _undone(manifests, listed.tags)
    known = {fact.path for fact in manifests}
    unknown = listed.tags.keys() - known
    unknown = unknown if left_out.only is None else unknown & left_out.only
    new = [learn_manifest(lake, key, listed.tags[key]) for key in sorted(unknown)]
    others = [
        fact
        for fact in before.files
        if fact.error != UNCOMMITTED and fact.path not in left_out and _is_another(fact, listed.files)
    ]
    lost = {fact.path for fact in before.files if fact.kept_error is not None}
    proven = proven_paths(before.manifests, before.files)
    unproven = {fact.path for fact in before.files if fact.part is not None and fact.path not in proven}
    is_old = not new and not others and not lost and not undone and len(manifests) == len(before.manifests)
    if is_judged_alike and is_old and not unproven:
        return Plan(before, new, is_due=False, is_anew=False)
    everything = BatchFacts(manifests=[*manifests, *new], files=before.files)
    active = active_facts(everything, trusted).manifests
    undone &= {fact.path for fact in active}
    committed = committed_paths(active, trusted)
    announced = {file.path for _, file in announced_files(active)}
    waiting = {fact.path for fact in others if fact.part is None} & announced
    is_due = bool(new or waiting) or any(fact.error == UNCOMMITTED and fact.path in committed for fact in before.files)
    is_restored = (
        _are_restored(lake, [fact for fact in others if fact.part is not None], active, listed.files)
        or _are_kept_again(lake, lost, active, trusted)
        or _are_replaced(before.manifests, active, unproven - announced)
        or bool(undone)
    )
    is_reread = is_restored and may_reread()
    is_disbelieved = (trusted and _are_disbelieved(everything, active, committed, trusted)) or (
        # other rows of these files may be believed now
        not is_judged_alike and (bool(unproven) or _are_unsigned(before, active, trusted))
    )
    if is_reread or is_disbelieved:
        nothing = BatchFacts(manifests=[], files=[])
        left = [fact for fact in everything.manifests if fact.path not in undone]
        return Plan(nothing, left, is_due=True, is_anew=True, is_reread=is_reread)
    files = [fact for fact in before.files if fact.path not in waiting]
    return Plan(BatchFacts(manifests=manifests, files=files), new, is_due, is_anew=False)


def changed_files(plan: Plan, everything: BatchFacts, before: Listing, now: Listing) -> set[str]:
    """The files that this run has read, and that are other objects than when it read them, or gone.

    A file is read several times, and only the rows that were read first were compared with the signed root. An object
    store may give the same bytes the same tag again: then the time of the object tells that it was replaced.
    """
    known = {fact.path for fact in plan.known.files}
    read = {fact.path: fact for fact in everything.files if fact.path not in known and fact.part is not None}
    moved = {path for path in read if _is_moved(before.files.get(path), now.files.get(path))}
    return moved | {path for path in read.keys() - moved if now.files[path].tag not in ("", read[path].tag)}


def disturbed_files(plan: Plan, before: Listing, now: Listing) -> set[str]:
    """The files that this run was to read, and that are other objects than before, or gone."""
    wanted = {file.path for _, file in announced_files([*plan.known.manifests, *plan.new])}
    wanted.difference_update(fact.path for fact in plan.known.files)
    return {path for path in wanted & before.files.keys() if _is_moved(before.files[path], now.files.get(path))}


def _is_moved(before: Entry | None, now: Entry | None) -> bool:
    """True unless both are the same object; a listing without tags is compared by sizes and times."""
    if before is None or now is None:
        return True
    is_tagged = bool(before.tag and now.tag)
    return before != now if is_tagged else before[:3] != now[:3]


def _remembered(
    lake: Store, before: BatchFacts, tags: Mapping[str, str], trusted: Sequence[Verifier]
) -> list[ManifestFact]:
    """Without those that are other objects now and were never believed, or are corrected now: they are learnt again."""
    changed = {fact.path for fact in before.manifests if tags.get(fact.path) != fact.tag}
    if changed:
        wrong = {fact.path for fact in (*false_manifests(before.manifests, trusted), *_unreadable(before.manifests))}
        files = {fact.path: fact for fact in before.files}
        wrong |= _of_strangers(before.manifests, files, tags)
        changed = {
            fact.path
            for fact in before.manifests
            if fact.path in changed and (fact.path in wrong or _is_corrected(lake, fact, files, tags))
        }
    return [fact for fact in before.manifests if fact.path not in changed]


def _of_strangers(facts: Sequence[ManifestFact], files: Mapping[str, FileFact], tags: Mapping[str, str]) -> set[str]:
    """Manifests that are gone, none of whose files could be read, with another key than those that are there."""
    there: dict[str, set[str]] = {}
    for fact in facts:
        if fact.manifest is not None and fact.path in tags:
            there.setdefault(fact.manifest.server, set()).add(fact.manifest.key)
    return {
        fact.path
        for fact in facts
        if fact.manifest is not None and fact.path not in tags
        if fact.manifest.key not in there.get(fact.manifest.server, {fact.manifest.key})
        if not any(file.path in files and files[file.path].part is not None for file in fact.manifest.files)
    }


def _is_corrected(lake: Store, known: ManifestFact, files: Mapping[str, FileFact], tags: Mapping[str, str]) -> bool:
    """True if a manifest is now what it was, without what its files have shown to be false."""
    if known.manifest is None or known.path not in tags:
        return False
    true = [_as_found(file, files.get(file.path), known.manifest.server) for file in known.manifest.files]
    if true == known.manifest.files:
        return False
    return learn_manifest(lake, known.path).manifest == msgspec.structs.replace(known.manifest, files=true)


def _as_found(file: SealedFile, fact: FileFact | None, server: str) -> SealedFile:
    """A file with the times that its rows have, and without retained fields that nobody may sign."""
    if fact is None or fact.part is None or not fact.is_proven(file, server):
        return file
    times = {"first_at_us": fact.part.first_at_us, "last_at_us": fact.part.last_at_us}
    retained = file.retained if fact.kept_error is None else None
    return msgspec.structs.replace(file, retained=retained, **times)


def _undone(facts: Sequence[ManifestFact], tags: Mapping[str, str]) -> set[str]:
    """The compactions that are gone, while all that they replaced is there."""
    return {
        fact.path
        for fact in facts
        if fact.path not in tags and fact.manifest is not None and fact.manifest.replaces
        if all(f"{manifest_prefix(fact.manifest.server)}{_name(one)}.json" in tags for one in fact.manifest.replaces)
    }


def _name(replaced: int | str) -> str:
    return manifest_name(replaced) if isinstance(replaced, int) else replaced


def _unreadable(facts: Sequence[ManifestFact]) -> Iterator[ManifestFact]:
    return (fact for fact in facts if fact.manifest is None)


def _is_another(fact: FileFact, present: Mapping[str, Entry]) -> bool:
    entry = present.get(fact.path)
    return entry is not None and (entry.tag != fact.tag or fact.error == CHANGING)


def _are_restored(
    lake: Store, changed: Sequence[FileFact], active: Sequence[ManifestFact], present: Mapping[str, Entry]
) -> bool:
    """True if a file that had other rows than its server sealed has the announced bytes now."""
    by_path = {fact.path: fact for fact in changed}
    for manifest in (fact.manifest for fact in active if by_path and fact.manifest is not None):
        for file in manifest.files:
            fact = by_path.get(file.path)
            if fact is not None and not fact.is_proven(file, manifest.server) and _has_bytes(lake, file, present):
                return True
    return False


def _are_kept_again(
    lake: Store, lost: Collection[str], active: Sequence[ManifestFact], trusted: Sequence[Verifier]
) -> bool:
    """True if fields that a compaction retained for one of these files could not be read, and can be now, or are not
    announced any more.
    """
    return any(
        file.path in lost and (file.retained is None or inspect_signed(lake, file, file.retained, trusted) is None)
        for fact in active
        if lost and fact.manifest is not None
        for file in fact.manifest.files
    )


def _are_unsigned(before: BatchFacts, active: Sequence[ManifestFact], trusted: Sequence[Verifier]) -> bool:
    """True if retained fields were read that no key has signed which is trusted now."""
    believed = {fact.path for fact in before.files if fact.is_kept_signed}
    return any(
        file.path in believed and file.retained is not None and not is_signed(file.retained, trusted)
        for fact in active
        if fact.manifest is not None
        for file in fact.manifest.files
    )


def _has_bytes(lake: Store, file: SealedFile, present: Mapping[str, Entry]) -> bool:
    try:
        return present[file.path].size <= MAX_FILE_BYTES and sha256_of(lake, file.path) == file.sha256
    except (OSError, JournalDamaged):
        return False


def _are_replaced(before: Sequence[ManifestFact], active: Sequence[ManifestFact], unproven: Collection[str]) -> bool:
    """True if hops that were read from these files, with other rows than were sealed, are in compacted files now."""
    compacted = [fact.manifest for fact in active if fact.manifest is not None and fact.manifest.is_compaction]
    return any(
        file.path in unproven
        for old in (fact.manifest for fact in before if unproven and fact.manifest is not None)
        for new in compacted
        if old.server == new.server and old.first_seq < new.end and new.first_seq < old.end
        for file in old.files
    )


def _are_disbelieved(
    facts: BatchFacts, active: Sequence[ManifestFact], committed: Collection[str], trusted: Sequence[Verifier]
) -> bool:
    """True if rows were read that no root signed with a trusted key leads to."""
    announced = announced_files([*active, *false_manifests(facts.manifests, trusted)])
    doubted = {file.path for _, file in announced}.difference(committed)
    return any(fact.part is not None and fact.path in doubted for fact in facts.files)
