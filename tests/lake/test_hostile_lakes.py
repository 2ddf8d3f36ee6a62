"""Hostile lakes without Spark: every file is inspected within bounds, every culprit named, no one else affected."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from audit.audit_worlds import SECOND, T0_US, append_and_seal, quiet_pcp, signer_of, write_lake
from dovetail.audit.active_manifests import active_facts, false_manifests
from dovetail.audit.ingest_log import (
    BatchFacts,
    FileFact,
    altered_files,
    learn_manifest,
    newest_us,
    present_files,
)
from dovetail.audit.integrity import Verdict, judge_servers
from dovetail.audit.merkle_scan import Part, decode_part, merge_parts, walk_files
from dovetail.audit.proven_files import committed_paths, proven_paths
from dovetail.lake.inspect import inspect_file
from dovetail.lake.layout import manifest_key, server_slug
from dovetail.lake.manifest import SealedFile, encode_manifest
from dovetail.lake.rows import CHECK_BYTES, LAKE_SCHEMA, hash_rows
from dovetail.lake.snapshot import manifest_keys, snapshot
from dovetail.lake.store import LocalStore
from dovetail.model.errors import DovetailError
from dovetail.model.times import to_datetime
from dovetail.tlog.keys import Signer
from lake.hostile_lakes import (
    CASES,
    CULPRIT,
    HONEST,
    Culprit,
    add_culprit,
    remove_culprit,
    write_forged,
    write_honest,
)

pytestmark = pytest.mark.exhaustive

HARMLESS = {
    "manifest-file-sha-of-another",
    "manifest-under-odd-names",
    "manifest-behind-it-with-its-own-checkpoint",
    "manifest-behind-it-with-everything-copied",
}
"""The hops are still those that were signed: the fault is named, and does not invalidate the proof."""


@pytest.fixture(scope="module")
def honest(tmp_path_factory) -> Path:
    return write_honest(tmp_path_factory.mktemp("honest"))


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("template")
    lake = write_honest(root)
    add_culprit(root, lake)
    return lake


def walk_here(store: LocalStore, file: SealedFile) -> Part | None:
    """The result of Spark's scan, in this process; a row whose leaf cannot be computed has none."""
    with store.open(file.path) as source:
        table = pq.ParquetFile(source).read()
    leaves, valid = [], []
    for index in range(table.num_rows):
        row = table.slice(index, 1)
        try:
            (leaf,) = hash_rows(file.path, row)
        except (DovetailError, struct.error, OverflowError, TypeError, ValueError):
            leaf = None
        leaves.append(leaf)
        valid.append(leaf is not None and row["leaf"][0].as_py() == leaf[:CHECK_BYTES])
    batch = pa.RecordBatch.from_pydict(
        {
            "file": [file.path] * table.num_rows,
            "server": table["server"].combine_chunks().cast(pa.string()),
            "seq": table["seq"].combine_chunks(),
            "at_us": table["at"].combine_chunks().cast(pa.int64()),
            "leaf_hash": pa.array(leaves, pa.binary()),
            "leaf_valid": pa.array(np.array(valid, dtype=bool)),
        }
    )
    parts = [decode_part(part["part"][0].as_py()) for part in walk_files([batch])]
    return merge_parts(parts) if parts else None


def learn_here(lake: Path) -> BatchFacts:
    """The facts that an audit learns from a lake, file by file."""
    store = LocalStore(lake)
    manifests = [learn_manifest(store, key) for key in manifest_keys(store)]
    active = active_facts(BatchFacts(manifests=manifests, files=[]), ()).manifests
    committed = committed_paths(active)
    files = []
    for manifest in (fact.manifest for fact in active if fact.manifest is not None):
        for file in manifest.files:
            found = inspect_file(store, file) if file.path in committed else None
            part = walk_here(store, file) if found is not None and found.error is None else None
            error = "not committed to" if found is None else found.error
            sha256 = "" if found is None else found.sha256
            files.append(
                FileFact(
                    path=file.path,
                    server=manifest.server,
                    is_whole=sha256 == file.sha256,
                    error=error,
                    part=part,
                    sha256=sha256,
                    tag="" if found is None else found.tag,
                )
            )
    return BatchFacts(manifests=manifests, files=files)


def judge_here(lake: Path) -> dict[str, Verdict]:
    facts = learn_here(lake)
    active, false = active_facts(facts, ()), false_manifests(facts.manifests, ())
    return {verdict.server: verdict for verdict in judge_servers(active.manifests, facts.files, false=false)}


@pytest.fixture(scope="module")
def expected(honest) -> dict[str, tuple]:
    return {server: verdict.row() for server, verdict in judge_here(honest).items()}


def test_there_are_hundreds_of_cases():
    assert len(CASES) >= 300


@pytest.mark.parametrize("name", sorted(CASES))
def test_one_bad_server_concerns_nobody_else(name, template, expected, tmp_path):
    lake = tmp_path / "lake"
    shutil.copytree(template, lake)
    culprit = Culprit(lake)
    CASES[name](culprit)
    verdicts = judge_here(lake)
    assert {server: verdicts[server].row() for server in HONEST} == expected
    guilty = verdicts.get(CULPRIT) or verdicts[server_slug(CULPRIT)]
    assert guilty.breaks, "the culprit is named"
    assert all("\n" not in (item.file or "") for item in guilty.breaks)
    if name not in HARMLESS:
        assert guilty.verdict != "proven"
    assert set(snapshot(LocalStore(lake)).servers) >= set(HONEST), "the others can still be read"
    remove_culprit(culprit)
    assert {server: verdict.row() for server, verdict in judge_here(lake).items()} == expected


def test_several_at_once(tmp_path, expected):
    """Each case is one server among the others, in one lake."""
    lake = write_honest(tmp_path)
    names = sorted(CASES)[::9]
    for number, name in enumerate(names):
        server = f"pcp://culprit-{number}.example/server"
        CASES[name](add_culprit(tmp_path, lake, server))
    verdicts = judge_here(lake)
    assert {server: verdicts[server].row() for server in HONEST} == expected
    assert len(verdicts) == len(HONEST) + len(names), "no server vanishes from the count"
    for number, name in enumerate(names):
        server = f"pcp://culprit-{number}.example/server"
        guilty = verdicts.get(server) or verdicts[server_slug(server)]
        assert guilty.breaks, name
        assert name in HARMLESS or guilty.verdict != "proven", name


def test_a_manifest_that_somebody_without_a_key_puts_in_anothers_place_is_told_and_changes_nothing(tmp_path, expected):
    lake = write_honest(tmp_path)
    victim = HONEST[0]
    (manifest,) = snapshot(LocalStore(lake)).servers[victim]
    files = [msgspec.structs.replace(file, root="11" * 32) for file in manifest.files]
    forged = msgspec.structs.replace(manifest, files=files, number=7, replaces=[manifest.number])
    key = manifest_key(victim, 7)
    (lake / key).write_bytes(encode_manifest(forged))
    store = LocalStore(lake)
    facts = BatchFacts(manifests=[learn_manifest(store, each) for each in manifest_keys(store)], files=[])
    active, false = active_facts(facts, ()).manifests, false_manifests(facts.manifests, ())
    assert [fact.path for fact in false] == [key]
    (lake / key).unlink()
    verdicts = {found.server: found for found in judge_servers(active, learn_here(lake).files, false=false)}
    assert {server: verdicts[server].row() for server in HONEST[1:]} == {
        server: expected[server] for server in HONEST[1:]
    }
    assert [item.check for item in verdicts[victim].breaks] == ["integrity.false_replacement"]
    assert (verdicts[victim].verdict, verdicts[victim].proven_hops) == ("proven", manifest.end)


def test_a_server_without_any_manifest_is_listed_if_its_key_was_given(tmp_path):
    lake = write_honest(tmp_path)
    trusted = [signer_of(name).verifier for name in (*HONEST, CULPRIT)]
    trusted.append(signer_of("witness.example").verifier)  # not the name of a server
    facts = learn_here(lake)
    broker, missing, second = judge_servers(facts.manifests, facts.files, trusted=trusted)
    assert [(found.server, found.verdict, found.breaks) for found in (broker, second)] == [
        (server, "proven", []) for server in sorted(HONEST)
    ]
    assert (missing.server, missing.verdict, missing.hops) == (CULPRIT, "incomplete", 0)
    assert [item.check for item in missing.breaks] == ["integrity.no_manifest"]


def test_two_names_with_one_key_are_told_as_one_party(tmp_path, expected):
    lake = write_honest(tmp_path)
    twins = ("pcp://twin-a.example/server", "pcp://twin-b.example/server")
    for number, server in enumerate(twins):
        signer = Signer(server, signer_of("twins").private_key)
        append_and_seal(tmp_path, lake, server, quiet_pcp(8, T0_US, 5000 + 100 * number), signer)
    verdicts = judge_here(lake)
    assert {server: verdicts[server].row() for server in HONEST} == expected
    for server, other in (twins, twins[::-1]):
        (found,) = verdicts[server].breaks
        assert (found.check, found.detail) == ("integrity.shared_key", f"its key is also that of {other}")
        assert verdicts[server].verdict == "proven"


def newest_here(lake: Path, now_us: int) -> int:
    facts = learn_here(lake)
    return newest_us(facts.files, proven_paths(facts.manifests, facts.files), now_us)


@pytest.mark.parametrize("has_its_leaf", [True, False])
def test_a_row_that_nobody_sealed_moves_nobodys_time(tmp_path, has_its_leaf):
    lake = write_honest(tmp_path)
    culprit = add_culprit(tmp_path, lake)
    now_us = T0_US + 10**6 * SECOND
    expected = newest_here(lake, now_us)
    rows = culprit.rows()
    times = [*rows["at"].to_pylist()[:-1], to_datetime(now_us)]
    rows = rows.set_column(rows.schema.get_field_index("at"), LAKE_SCHEMA.field("at"), [times])
    if has_its_leaf:
        write_forged(culprit.file, rows)
    else:
        pq.write_table(rows, culprit.file)
    assert newest_here(lake, now_us) == expected < now_us


def test_a_clock_that_is_ahead_moves_nobody_elses_time(tmp_path):
    lake = write_honest(tmp_path)
    honest = learn_here(lake).files
    now_us = T0_US + 3600 * SECOND
    expected = newest_here(lake, now_us)
    append_and_seal(tmp_path, lake, CULPRIT, quiet_pcp(1, T0_US + 10**16, 900))
    facts = learn_here(lake)
    assert newest_here(lake, now_us) == expected == max(fact.part.last_at_us for fact in honest)
    verdicts = {found.server: found for found in judge_servers(facts.manifests, facts.files, now_us=now_us)}
    assert "integrity.time_ahead" in {item.check for item in verdicts[CULPRIT].breaks}
    assert all(verdicts[server].breaks == [] for server in HONEST)


def test_what_was_audited_is_still_checked(tmp_path):
    lake = write_honest(tmp_path)
    store = LocalStore(lake)
    facts = learn_here(lake)
    assert altered_files(store, present_files(store), facts.files) == ([], [])
    victim = lake / facts.files[0].path
    times = victim.stat()
    data = victim.read_bytes()
    victim.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    os.utime(victim, ns=(times.st_atime_ns, times.st_mtime_ns))
    altered = altered_files(store, present_files(store), facts.files).changed
    assert altered == [(facts.files[0], "its bytes have changed since it was read")]
    verdicts = {found.server: found for found in judge_servers(facts.manifests, facts.files, altered=altered)}
    assert verdicts[facts.files[0].server].verdict == "broken"
    victim.write_bytes(data)
    again = altered_files(store, present_files(store), facts.files)
    assert again.changed == [], "the same bytes again are no finding"
    (same,) = again.retagged
    assert altered_files(store, present_files(store), [same, *facts.files[1:]]) == ([], []), "it is read once"


def test_a_server_with_the_same_directory_does_not_take_the_blame(tmp_path):
    """The directory has 32 bits of the name's hash: whoever has the time finds another name with the same ones."""
    names: dict[str, str] = {}
    for number in range(1 << 20):
        name = f"pcp://x/{chr(0x4E00 + number // 1000)}{chr(0x4E00 + number % 1000)}"
        if (other := names.setdefault(server_slug(name), name)) != name:
            break
    worlds = {"own": {name: quiet_pcp(4)}, "foreign": {other: quiet_pcp(2)}}
    own, foreign = (learn_here(write_lake(tmp_path / root, world)) for root, world in worlds.items())
    manifests = [*own.manifests, *foreign.manifests]
    altered = [(own.files[0], "it has other bytes than when it was read")]
    verdicts = {
        found.server: found for found in judge_servers(manifests, [*own.files, *foreign.files], altered=altered)
    }
    assert (verdicts[name].verdict, verdicts[other].verdict) == ("broken", "proven")


def test_an_honest_file_is_read(honest):
    store = LocalStore(honest)
    for manifest in snapshot(store).manifests():
        for file in manifest.files:
            found = inspect_file(store, file)
            assert (found.sha256, found.error) == (file.sha256, None)
