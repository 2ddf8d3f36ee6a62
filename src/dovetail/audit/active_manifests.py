"""What still counts of what an audit has learnt, after a compaction has replaced manifests and files.

A compaction changes no hop. So rows of files that were read before are not read a second time under the new files'
names: of those only what is new is taken, and that they hold the same hops is checked as for any file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by

from dovetail.audit.ingest_log import BatchFacts, ManifestFact
from dovetail.lake.manifest import MANIFESTS, standing_paths

Range = tuple[int, int]
"""The first hop, and the one after the last."""


def standing_facts(facts: BatchFacts) -> BatchFacts:
    """Without manifests that others among them replace."""
    paths = {str(path) for path in standing_paths(Path(fact.path) for fact in facts.manifests)}
    return BatchFacts(manifests=[fact for fact in facts.manifests if fact.path in paths], files=facts.files)


def lying_manifests(lake: Path, manifests: Sequence[ManifestFact]) -> list[ManifestFact]:
    """Those that must still lie in the lake: a follower may look before the stream brings what replaced the others."""
    lying = {path.relative_to(lake) for path in (lake / MANIFESTS).glob("*/[0-9]*.json")}
    standing = set(standing_paths({*lying, *(Path(fact.path) for fact in manifests)}))
    return [fact for fact in manifests if Path(fact.path) in standing]


def hops_read_again(known: BatchFacts, manifests: Sequence[ManifestFact]) -> dict[str, list[Range]]:
    """By server, the hops that files of these compacted manifests have and that were read from others before."""
    read = {fact.path for fact in known.files if fact.part is not None}
    again: dict[str, list[Range]] = {}
    for compacted in (fact.manifest for fact in manifests if fact.manifest is not None and fact.manifest.generation):
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
