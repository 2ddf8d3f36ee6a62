"""Which of the audit's facts are still active after a compaction has replaced manifests and files.

A compaction changes no hop. So rows that were already read are not read again from the new files: only new rows are
taken, and that the files hold the same hops is checked as for any file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the conventional name

from dovetail.audit.ingest_log import BatchFacts, ManifestFact, learn_manifest
from dovetail.lake.manifest import Manifest
from dovetail.lake.snapshot import choose, manifest_keys, settle
from dovetail.lake.store import Store
from dovetail.tlog.keys import Verifier

Range = tuple[int, int]
"""The first hop, and the one after the last."""


def active_facts(facts: BatchFacts, trusted: Sequence[Verifier]) -> BatchFacts:
    """Drop manifests that are replaced by others among them, and forged ones."""
    by_key = {fact.path: fact.manifest for fact in facts.manifests}
    active = choose(by_key, by_key.__getitem__, trusted)
    return BatchFacts(manifests=[fact for fact in facts.manifests if fact.path in active], files=facts.files)


def false_manifests(manifests: Sequence[ManifestFact], trusted: Sequence[Verifier]) -> list[ManifestFact]:
    """Those that are forged, or claim to replace others without having the same hops: see `lake.claims`."""
    by_key = {fact.path: fact.manifest for fact in manifests}
    false = settle(by_key, by_key.__getitem__, trusted)[1]
    return [fact for fact in manifests if fact.path in false]


def expected_manifests(
    lake: Store, manifests: Sequence[ManifestFact], trusted: Sequence[Verifier]
) -> list[ManifestFact]:
    """Those that must still be in the lake: a follower may look before the stream has their replacements."""
    known = {fact.path: fact.manifest for fact in manifests}

    def read(key: str) -> Manifest | None:
        return known[key] if key in known else learn_manifest(lake, key).manifest

    active = choose({*manifest_keys(lake), *known}, read, trusted)
    return [fact for fact in manifests if fact.path in active]


def hops_read_again(known: BatchFacts, manifests: Sequence[ManifestFact]) -> dict[str, list[Range]]:
    """By server, the hops in files of these compacted manifests that were already read from other files."""
    read = {fact.path for fact in known.files if fact.part is not None}
    again: dict[str, list[Range]] = {}
    for compacted in (fact.manifest for fact in manifests if fact.manifest is not None and fact.manifest.is_compaction):
        for old in (fact.manifest for fact in known.manifests if fact.manifest is not None):
            if old.server == compacted.server and old.first_seq < compacted.end and compacted.first_seq < old.end:
                again.setdefault(old.server, []).extend(
                    (file.first_seq, file.end) for file in old.files if file.path in read
                )
    return {server: _join(ranges) for server, ranges in again.items()}


def _join(ranges: list[Range]) -> list[Range]:
    joined: list[Range] = []
    for first, end in sorted(ranges):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((first, end))
    return joined


def without(rows: DataFrame, again: Mapping[str, Sequence[Range]]) -> DataFrame:
    """Rows of the lake that were not read before."""
    seen = [
        (F.col("server") == server) & (F.col("seq") >= first) & (F.col("seq") < end)
        for server, ranges in again.items()
        for first, end in ranges
    ]
    return rows.where(~reduce(or_, seen)) if seen else rows
