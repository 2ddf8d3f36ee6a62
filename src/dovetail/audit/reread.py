"""What of earlier runs still holds, and what has to be read again.

Silver only grows, so a run reads what is new. But a file that was missing or damaged may have been restored, a manifest
that nobody believed may have been removed or replaced, and other keys may be trusted. The tables must always be those
of an audit that reads the lake for the first time:

- What was not readable and is another object now is read again.
- A manifest that was never believed leaves nothing behind when it is gone. One that was believed stays evidence.
- If silver has rows that are not believed any more, or that differ from the sealed ones and those can be read now,
  everything is read again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from dovetail.audit.active_manifests import active_facts, false_manifests
from dovetail.audit.failures import FileChanged
from dovetail.audit.ingest_log import UNCOMMITTED, BatchFacts, FileFact, ManifestFact, learn_manifest, present_files
from dovetail.audit.integrity import committed_paths, proven_paths
from dovetail.audit.sources import announced_files
from dovetail.lake.manifest import MAX_FILE_BYTES, SealedFile
from dovetail.lake.snapshot import manifest_tags
from dovetail.lake.store import Entry, Store
from dovetail.lake.writer import sha256_of
from dovetail.model.errors import JournalDamaged
from dovetail.tlog.keys import Verifier


class Plan(NamedTuple):
    """`known` are the facts of earlier runs that still hold, `new` the manifests to process with them.

    `is_due` if there is anything to read; `is_anew` if what silver has must be dropped first.
    """

    known: BatchFacts
    new: list[ManifestFact]
    is_due: bool
    is_anew: bool


class Listing(NamedTuple):
    """The manifests of a lake with their tags, and its files."""

    tags: Mapping[str, str]
    files: Mapping[str, Entry]


def list_lake(lake: Store) -> Listing:
    """What is in the lake now."""
    return Listing(manifest_tags(lake), present_files(lake))


def plan_reading(
    lake: Store, before: BatchFacts, listed: Listing, trusted: Sequence[Verifier], *, is_judged_alike: bool
) -> Plan:
    """Compare the facts of earlier runs with the lake; `is_judged_alike` if the last one had the same settings."""
    manifests = _remembered(before.manifests, listed.tags, trusted)
    known = {fact.path for fact in manifests}
    new = [learn_manifest(lake, key, listed.tags[key]) for key in sorted(listed.tags.keys() - known)]
    others = [fact for fact in before.files if fact.error != UNCOMMITTED and _is_another(fact, listed.files)]
    if is_judged_alike and not new and not others and len(manifests) == len(before.manifests):
        return Plan(before, new, is_due=False, is_anew=False)
    everything = BatchFacts(manifests=[*manifests, *new], files=before.files)
    active = active_facts(everything, trusted).manifests
    committed = committed_paths(active, trusted)
    announced = {file.path for _, file in announced_files(active)}
    waiting = {fact.path for fact in others if fact.part is None} & announced
    is_due = bool(new or waiting) or any(fact.error == UNCOMMITTED and fact.path in committed for fact in before.files)
    if (
        _are_restored(lake, [fact for fact in others if fact.part is not None], active, listed.files)
        or _are_replaced(before, [fact for fact in active if fact.path not in known])
        or (trusted and _are_disbelieved(everything, active, committed, trusted))
    ):
        return Plan(BatchFacts(manifests=[], files=[]), everything.manifests, is_due=True, is_anew=True)
    files = [fact for fact in before.files if fact.path not in waiting]
    return Plan(BatchFacts(manifests=manifests, files=files), new, is_due, is_anew=False)


def check_unchanged(plan: Plan, everything: BatchFacts, listed: Listing) -> None:
    """FileChanged if a file is another object than when this run began to read it.

    It is read several times, and only the rows that were read first were compared with the signed root.
    """
    before = {fact.path for fact in plan.known.files}
    for fact in everything.files:
        if fact.path not in before and fact.part is not None and _is_another(fact, listed.files):
            raise FileChanged(fact.path)


def _remembered(
    facts: Sequence[ManifestFact], tags: Mapping[str, str], trusted: Sequence[Verifier]
) -> list[ManifestFact]:
    """Without those that were never believed and are gone, or are other objects now: these are learnt again."""
    changed = {fact.path for fact in facts if tags.get(fact.path) != fact.tag}
    if changed:
        changed &= {fact.path for fact in (*false_manifests(facts, trusted), *_unreadable(facts))}
    return [fact for fact in facts if fact.path not in changed]


def _unreadable(facts: Sequence[ManifestFact]) -> Iterator[ManifestFact]:
    return (fact for fact in facts if fact.manifest is None)


def _is_another(fact: FileFact, present: Mapping[str, Entry]) -> bool:
    entry = present.get(fact.path)
    return entry is not None and entry.tag != fact.tag


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


def _has_bytes(lake: Store, file: SealedFile, present: Mapping[str, Entry]) -> bool:
    try:
        return present[file.path].size <= MAX_FILE_BYTES and sha256_of(lake, file.path) == file.sha256
    except (OSError, JournalDamaged):
        return False


def _are_replaced(before: BatchFacts, added: Sequence[ManifestFact]) -> bool:
    """True if hops that were read from files with other rows than were sealed are in compacted files now."""
    compacted = [fact.manifest for fact in added if fact.manifest is not None and fact.manifest.is_compaction]
    if not compacted:
        return False
    proven = proven_paths(before.manifests, before.files)
    unproven = {fact.path for fact in before.files if fact.part is not None and fact.path not in proven}
    return any(
        file.path in unproven
        for old in (fact.manifest for fact in before.manifests if fact.manifest is not None)
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
