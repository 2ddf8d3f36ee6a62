"""Every kind of tampering with a lake is found and named, with its first bad hop; untouched servers have no findings.

All kinds are tried in one lake, each on its own server named after it, so that one scan judges them all.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from audit.audit_worlds import BROKER, T0_US, signer_of, write_lake
from audit.audit_worlds import pcp_world as make_pcp
from dovetail.audit.ingest_log import (
    changed_manifests,
    learn_manifest,
    missing_files,
    present_files,
    unannounced_files,
)
from dovetail.audit.integrity import judge_servers
from dovetail.audit.sources import announced_files, learn_files
from dovetail.lake.manifest import SealedFile
from dovetail.lake.snapshot import manifest_keys
from dovetail.lake.store import LocalStore
from dovetail.model.hop import Hop, Reason, Stage
from dovetail.tlog.leaf import NO_DIGEST, encode_entry
from dovetail.tlog.tree import hash_leaf
from lake.lakes import manifests_of

MINUTE_US = 60_000_000
CELLS = {
    "at": lambda old: old.replace(year=2031),
    "stage": lambda _: Stage.PURGED.value,
    "counterpart": lambda _: "pcp://mallory/agent",
    "reason": lambda _: Reason.TOO_LARGE.value,
    "size": lambda _: 12345,
    "message": lambda _: bytes(32),
    "digest": lambda _: bytes([1]) * 32,
    "leaf": lambda _: bytes(8),
}
KINDS = {}


def tampering(change):
    """A kind of tampering: `change(lake, server, file)` returns the breaks it must be found by."""
    KINDS[change.__name__] = change
    return change


def server_of(kind: str) -> str:
    return f"pcp://{kind.replace('_', '-')}/server"


def largest_file(lake: Path, server: str) -> SealedFile:
    files = [file for manifest in manifests_of(lake, server) for file in manifest.files]
    return max(files, key=lambda file: file.rows)


def rewrite(path: Path, change) -> None:
    rows = pq.read_table(path, partitioning=None)
    pq.write_table(change(rows), path, compression="zstd")


def set_cell(rows: pa.Table, index: int, **cells) -> pa.Table:
    data = rows.to_pylist()
    data[index] |= cells
    return pa.Table.from_pylist(data, schema=rows.schema)


def manifest_files(lake: Path, server: str) -> list[Path]:
    """All of a server's manifests, including tampered ones."""
    return [lake / key for key in manifest_keys(LocalStore(lake), server)]


def edit_manifest(path: Path, change) -> None:
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


@tampering
def untouched(lake, server, file):
    return set()


@tampering
def byte_in_raw(lake, server, file):
    path = lake / file.path
    rows = pq.read_table(path, partitioning=None)
    index = next(i for i, raw in enumerate(rows["raw"].to_pylist()) if raw and i > 1)
    raw = bytearray(rows["raw"][index].as_py())
    raw[-1] ^= 1
    rewrite(path, lambda rows: set_cell(rows, index, raw=bytes(raw)))
    return {("altered_row", file.first_seq + index)}


@tampering
def leaf_made_anew(lake, server, file):
    def change(rows):
        row = rows.slice(1, 1).to_pylist()[0]
        hop = Hop(
            server=server,
            seq=row["seq"],
            at_us=pa.scalar(row["at"], pa.timestamp("us", tz="UTC")).value,
            fabric="pcp",
            stage=Stage.DELIVERED,
            message=row["message"],
            counterpart="pcp://mallory/agent",
            size=row["size"],
        )
        leaf = hash_leaf(encode_entry(hop, row["digest"] or NO_DIGEST))[:8]
        return set_cell(rows, 1, stage="delivered", counterpart="pcp://mallory/agent", reason=None, leaf=leaf)

    rewrite(lake / file.path, change)
    return {("subtree_mismatch", file.first_seq)}


@tampering
def removed_row(lake, server, file):
    rewrite(lake / file.path, lambda rows: pa.concat_tables([rows.slice(0, 3), rows.slice(4)]))
    return {("removed_rows", file.first_seq + 4)}


@tampering
def removed_last_row(lake, server, file):
    rewrite(lake / file.path, lambda rows: rows.slice(0, rows.num_rows - 1))
    return {("removed_rows", file.end - 1)}


@tampering
def repeated_row(lake, server, file):
    rewrite(lake / file.path, lambda rows: pa.concat_tables([rows.slice(0, 3), rows.slice(2)]))
    return {("repeated_rows", file.first_seq + 2)}


@tampering
def inserted_row(lake, server, file):
    other = largest_file(lake, server_of("untouched"))
    foreign = pq.read_table(lake / other.path, partitioning=None).slice(1, 1)
    rewrite(lake / file.path, lambda rows: pa.concat_tables([rows.slice(0, 2), foreign, rows.slice(2)]))
    return {("foreign_rows", file.first_seq), ("repeated_rows", file.first_seq + 1)}


@tampering
def swapped_rows(lake, server, file):
    rewrite(
        lake / file.path,
        lambda rows: pa.concat_tables([rows.slice(0, 1), rows.slice(2, 1), rows.slice(1, 1), rows.slice(3)]),
    )
    return {("order", file.first_seq + 2)}


@tampering
def removed_file(lake, server, file):
    (lake / file.path).unlink()
    return {("missing_file", file.first_seq)}


@tampering
def cut_file(lake, server, file):
    data = (lake / file.path).read_bytes()
    (lake / file.path).write_bytes(data[: len(data) // 2])
    return {("missing_file", file.first_seq)}


@tampering
def another_servers_file(lake, server, file):
    other = largest_file(lake, server_of("untouched"))
    shutil.copy(lake / other.path, lake / file.path)
    return {("foreign_rows", other.first_seq)}


@tampering
def old_checkpoint(lake, server, file):
    first, second, _ = manifest_files(lake, server)
    old = json.loads(first.read_text())["checkpoint"]
    missing = json.loads(second.read_text())["files"][0]["first_seq"]
    edit_manifest(second, lambda manifest: manifest.update(checkpoint=old))
    return {("missing_hops", missing), ("bad_manifest", None)}


@tampering
def removed_manifest(lake, server, file):
    _, second, _ = manifest_files(lake, server)
    missing = json.loads(second.read_text())["files"][0]["first_seq"]
    second.unlink()
    return {("missing_hops", missing)}


@tampering
def another_key(lake, server, file):
    _, second, third = manifest_files(lake, server)
    edit_manifest(second, lambda manifest: manifest.update(key=signer_of(BROKER).verifier.text()))
    seqs = [json.loads(path.read_text())["files"][0]["first_seq"] for path in (second, third)]
    return {("bad_signature", seqs[0]), ("key_changed", seqs[0]), ("key_changed", seqs[1])}


@tampering
def changed_root(lake, server, file):
    path = manifest_files(lake, server)[0]
    edit_manifest(path, lambda manifest: manifest["files"][0].update(root="00" * 32))
    seqs = [json.loads(path.read_text())["files"][0]["first_seq"] for path in manifest_files(lake, server)]
    return {("subtree_mismatch", 0), *(("root_mismatch", seq) for seq in seqs)}


@tampering
def written_anew(lake, server, file):
    rewrite(lake / file.path, lambda rows: rows)
    return {("file_rewritten", file.first_seq)}


def change_cell(column):
    def change(lake, server, file):
        def set_new(rows):
            return set_cell(rows, 2, **{column: CELLS[column](rows[column][2].as_py())})

        rewrite(lake / file.path, set_new)
        return {("altered_row", file.first_seq + 2)}

    return change


KINDS |= {f"cell_{column}": change_cell(column) for column in CELLS}


def learn(spark, lake: Path):
    store = LocalStore(lake)
    facts = [learn_manifest(store, key) for key in manifest_keys(store)]
    return facts, learn_files(spark, store, announced_files(facts))


def judge(lake: Path, facts, files, trusted=(), changed=()):
    manifests = [fact.manifest for fact in facts if fact.manifest is not None]
    present = present_files(LocalStore(lake))
    verdicts = judge_servers(
        facts,
        files,
        trusted=trusted,
        changed=changed,
        unannounced=unannounced_files(present, manifests),
        missing=missing_files(present, manifests),
    )
    return {verdict.server: verdict for verdict in verdicts}


@pytest.fixture(scope="module")
def tampered(spark, tmp_path_factory):
    """The lake, the facts about it, and the breaks that each server must have."""
    root = tmp_path_factory.mktemp("tampering")
    rng = random.Random(5)
    observations = [
        make_pcp(rng, 14),
        make_pcp(rng, 9, 100, T0_US + MINUTE_US),
        make_pcp(rng, 5, 200, T0_US + 2 * MINUTE_US),
    ]
    lake = write_lake(root, *({server_of(kind): part[BROKER] for kind in KINDS} for part in observations))
    expected = {}
    for kind, change in KINDS.items():
        server = server_of(kind)
        expected[kind] = change(lake, server, largest_file(lake, server))
    facts, files = learn(spark, lake)
    return lake, facts, files, expected


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_tampering_is_found_and_named(tampered, kind):
    lake, facts, files, expected = tampered
    verdict = judge(lake, facts, files)[server_of(kind)]
    found = {(item.check.removeprefix("integrity."), item.seq) for item in verdict.breaks}
    assert found >= expected[kind]
    # moved rows can also go back in time, and a changed copy of a hash leaves the hops themselves proven
    beside = {"time_backwards", "file_rewritten", "altered_row", "order", "removed_rows", "repeated_rows"}
    assert {name for name, _ in found - expected[kind]} <= (beside if expected[kind] else set())
    harmless = {
        "untouched": "proven",
        "written_anew": "proven",
        "removed_manifest": "incomplete",
    }
    assert verdict.verdict == harmless.get(kind, "broken")


def test_an_untouched_server_is_proven_to_its_last_checkpoint(tampered):
    lake, facts, files, _ = tampered
    verdict = judge(lake, facts, files)[server_of("untouched")]
    assert verdict.proven_hops == verdict.signed_hops == verdict.hops > 30
    assert (verdict.proven_checkpoints, verdict.checkpoints, verdict.missing_hops) == (3, 3, 0)
    assert verdict.signed_at_us == max(file.part.last_at_us for file in files if file.server == verdict.server)


def test_one_altered_file_does_not_take_the_proof_from_the_others(tampered):
    lake, facts, files, _ = tampered
    verdict = judge(lake, facts, files)[server_of("byte_in_raw")]
    assert verdict.proven_checkpoints == 3
    assert verdict.proven_hops < verdict.hops


def test_what_belongs_to_no_server_is_told_under_no_name(tampered):
    lake, facts, files, _ = tampered
    stray = judge(lake, facts, files)[""]
    assert {item.check for item in stray.breaks} == {"integrity.unannounced_file"}


def test_rows_of_a_missing_file_are_counted(tampered):
    lake, facts, files, _ = tampered
    verdict = judge(lake, facts, files)[server_of("removed_file")]
    (item,) = [item for item in verdict.breaks if item.check == "integrity.missing_file"]
    announced = {file.path: file for fact in facts if fact.manifest for file in fact.manifest.files}
    assert verdict.missing_hops == announced[item.file].rows


def test_a_key_that_is_not_the_pinned_one(tampered):
    lake, facts, files, _ = tampered
    server = server_of("untouched")
    own = signer_of(server).verifier
    wrong = type(own)(server, bytes([9]) * 32)
    verdict = judge(lake, facts, files, trusted=[wrong])[server]
    assert {item.check for item in verdict.breaks} == {"integrity.bad_signature"}
    assert (verdict.key_source, verdict.proven_hops) == ("pinned", 0)
    assert judge(lake, facts, files, trusted=[own])[server].verdict == "proven"


def test_a_manifest_that_changes_after_it_was_read(tampered, tmp_path):
    lake, facts, files, _ = tampered
    copy = tmp_path / "lake"
    shutil.copytree(lake, copy)
    server = server_of("untouched")
    first, second, _ = manifest_files(copy, server)
    first.unlink()
    edit_manifest(second, lambda manifest: manifest.update(key="other"))
    verdict = judge(copy, facts, files, changed=changed_manifests(LocalStore(copy), facts).changed)[server]
    details = sorted(item.detail for item in verdict.breaks if item.check == "integrity.manifest_changed")
    assert details == ["the manifest has changed since it was first read", "the manifest is gone"]
