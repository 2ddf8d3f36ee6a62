"""Which manifests are active after a compaction, and which hops an audit must not read again."""

from __future__ import annotations

import os
import time

import msgspec

from audit.audit_worlds import BROKER, T0_US, quiet_pcp, write_lake
from dovetail.audit.active_manifests import active_facts, expected_manifests, hops_read_again, without
from dovetail.audit.ingest_log import (
    BatchFacts,
    FileFact,
    changed_manifests,
    learn_manifest,
    present_files,
    unannounced_files,
)
from dovetail.audit.merkle_scan import Part
from dovetail.lake.layout import manifest_key, manifest_prefix
from dovetail.lake.manifest import Manifest, encode_manifest
from dovetail.lake.store import LocalStore
from lake.lakes import manifest_files, manifests_of

OTHER = "pcp://other/server"


def read(manifest: Manifest, *, broken: tuple[int, ...] = ()) -> list[FileFact]:
    """Facts of a manifest's files; those that begin at `broken` could not be read."""
    facts = []
    for file in manifest.files:
        part = Part(file=file.path, first_seq=file.first_seq, last_seq=1 << 60, first_at_us=0, last_at_us=0)
        is_broken = file.first_seq in broken
        facts.append(FileFact(path=file.path, server=manifest.server, is_whole=True, part=None if is_broken else part))
    return facts


def compacted(lake, *manifests: Manifest):
    """One manifest over all of these, as a fact."""
    files = [file for manifest in manifests for file in manifest.files]
    replaces = [manifest.number for manifest in manifests]
    whole = msgspec.structs.replace(manifests[-1], files=files, number=3, replaces=replaces)
    key = manifest_key(whole.server, 3)
    (lake / key).write_bytes(encode_manifest(whole))
    return learn_manifest(LocalStore(lake), key)


def make(tmp_path):
    lake = write_lake(
        tmp_path,
        {BROKER: quiet_pcp(3), OTHER: quiet_pcp(2)},
        {BROKER: quiet_pcp(2, T0_US + 1, 10)},
        {BROKER: quiet_pcp(1, T0_US + 2, 20)},
    )
    old = [learn_manifest(LocalStore(lake), str(path.relative_to(lake))) for path in manifest_files(lake)]
    return lake, old, manifests_of(lake, BROKER)


def test_replaced_manifests_do_not_count_whether_they_are_there_or_not(tmp_path):
    lake, old, manifests = make(tmp_path)
    new = compacted(lake, *manifests[:2])
    facts = active_facts(BatchFacts(manifests=[*old, new], files=[]), ())
    assert {(fact.manifest.server, fact.manifest.first_seq, fact.manifest.number) for fact in facts.manifests} == {
        (BROKER, 0, 3),
        (BROKER, 10, 2),
        (OTHER, 0, 0),
    }
    assert active_facts(BatchFacts(manifests=old, files=[]), ()).manifests == old


def test_a_manifest_need_not_be_there_once_another_has_replaced_it(tmp_path):
    lake, old, manifests = make(tmp_path)
    compacted(lake, *manifests[:2])
    for path in sorted(lake.glob(f"{manifest_prefix(BROKER)}*.json"))[:3]:
        path.unlink()
    expected = expected_manifests(LocalStore(lake), old, ())
    assert [(fact.manifest.server, fact.manifest.first_seq) for fact in expected] == [(BROKER, 10), (OTHER, 0)]
    # the third was not replaced, so it is missing
    assert [what for _, what in changed_manifests(LocalStore(lake), expected).changed] == ["is gone"]


def test_files_of_a_sealing_under_way_are_passed_over_for_a_while(tmp_path):
    lake, old, manifests = make(tmp_path)
    (stray,) = [file.path for file in manifests[2].files]
    known = [fact.manifest for fact in old if fact.manifest != manifests[2]]
    present = present_files(LocalStore(lake))
    assert unannounced_files(present, known) == [stray]
    assert unannounced_files(present, known, min_age_s=600) == []
    long_ago = time.time() - 700
    os.utime(lake / stray, (long_ago, long_ago))
    assert unannounced_files(present_files(LocalStore(lake)), known, min_age_s=600) == [stray]


def test_only_hops_of_files_that_were_read_are_taken_as_read(tmp_path):
    lake, old, manifests = make(tmp_path)
    new = compacted(lake, *manifests)
    files = [fact for manifest in manifests[:2] for fact in read(manifest)]
    assert hops_read_again(BatchFacts(manifests=old, files=files), [new]) == {BROKER: [(0, 10)]}
    # hop 6 begins a file of its own, which could not be read
    files = [fact for manifest in manifests[:2] for fact in read(manifest, broken=(6,))]
    assert hops_read_again(BatchFacts(manifests=old, files=files), [new]) == {BROKER: [(0, 6), (8, 10)]}
    assert hops_read_again(BatchFacts(manifests=old, files=[]), [new]) == {BROKER: []}


def test_sealed_manifests_never_hide_hops_of_others(tmp_path):
    _, old, manifests = make(tmp_path)
    known = BatchFacts(manifests=old, files=[fact for manifest in manifests for fact in read(manifest)])
    assert hops_read_again(known, old) == {}


def test_rows_that_were_read_before_are_left_out(spark):
    rows = spark.createDataFrame(
        [(server, seq) for server in (BROKER, OTHER) for seq in range(6)], "server string, seq long"
    )
    left = without(rows, {BROKER: [(0, 2), (4, 5)], OTHER: []}).collect()
    assert sorted(row["seq"] for row in left if row["server"] == BROKER) == [2, 3, 5]
    assert len([row for row in left if row["server"] == OTHER]) == 6
    assert without(rows, {OTHER: []}) is rows
