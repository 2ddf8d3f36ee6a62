"""Compaction on Spark: fewer files, no expired bytes, and the same audit results."""

from __future__ import annotations

import datetime as dt
import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from audit.audit_worlds import (
    BROKER,
    COMPACTOR,
    EPOCH_MS,
    SECOND,
    SETTINGS,
    T0_US,
    append_and_seal,
    pcp_world,
    quiet_pcp,
    signer_of,
    whole_world,
    write_lake,
)
from dovetail.audit import schemas
from dovetail.audit.active_manifests import active_facts
from dovetail.audit.compact import SparkTasks
from dovetail.audit.ingest_log import BatchFacts, learn_manifest
from dovetail.audit.integrity import judge_servers
from dovetail.audit.run import Audit
from dovetail.audit.settings import AuditSettings
from dovetail.audit.sources import announced_files, check_retained, learn_files, retained_urls
from dovetail.audit.tables import open_tables
from dovetail.lake.compact import Compaction
from dovetail.lake.manifest import encode_manifest
from dovetail.lake.reader import open_lake
from dovetail.lake.store import LocalStore
from dovetail.lake.writer import sha256_of
from dovetail.model.address import Address
from dovetail.model.fabric import Agreement
from dovetail.receipt.build import build_receipt
from dovetail.receipt.verify import verify_receipt
from dovetail.tlog.keys import Verifier
from lake.lakes import manifest_files, manifests_of

pytestmark = pytest.mark.timeout(900)

T0 = dt.datetime.fromtimestamp(T0_US / 1e6, dt.UTC)
DAY = dt.timedelta(days=1)
RULES = Agreement(epoch_ms=EPOCH_MS, work_target=(1 << 256) - 1)
WITH_SWARM = AuditSettings(agreements={"": RULES, "test": RULES})


def make_lake(root: Path, fabrics: str) -> Path:
    """Sealed three times on one day; most pcp messages live for an hour, swarm messages for a minute or ten hours."""
    rng = random.Random(7)
    starts = [T0_US + part * 100 * SECOND for part in range(3)]
    if fabrics == "all":
        return write_lake(root, *(whole_world(7, 8, start_us) for start_us in starts))
    return write_lake(root, *(pcp_world(rng, 12, 1 + 100 * part, start_us) for part, start_us in enumerate(starts)))


def compact(spark, lake: Path, **options):
    given = {
        "before": T0 + 2 * DAY,
        "agreements": WITH_SWARM.named_agreements,
        "run_tasks": SparkTasks(spark),
        "signer": COMPACTOR,
    } | options
    return Compaction(store=LocalStore(lake), **given).run()


def trusted_of(lake: Path) -> tuple[Verifier, ...]:
    return (*(signer_of(manifest.server).verifier for manifest in manifests_of(lake)), COMPACTOR.verifier)


def audit(spark, lake: Path, out: Path, trusted: Sequence[Verifier] | None = None):
    given = trusted_of(lake) if trusted is None else trusted
    return Audit(spark=spark, lake=lake, tables=out, settings=replace(SETTINGS, trusted=given)).run()


def tables_of(out: Path, leave=("has_bytes", "run")) -> dict[str, list[str]]:
    """All rows of all tables, sorted."""
    return {
        table.name: sorted(
            repr(sorted((name, value) for name, value in row.items() if name not in leave))
            for row in open_tables(out).read(table.name).to_pylist()
        )
        for table in schemas.TABLES
        if table.layer != "log"
    }


def rows_of(lake: Path) -> dict[tuple[str, int], dict]:
    """Every row that the manifests announce."""
    rows = {}
    for manifest in manifests_of(lake):
        for file in manifest.files:
            for row in pq.read_table(lake / file.path, partitioning=None).to_pylist():
                assert (row["server"], row["seq"]) not in rows
                rows[row["server"], row["seq"]] = row
    return rows


@pytest.fixture(scope="module", params=["pcp", pytest.param("all", marks=pytest.mark.soak)])
def compacted(spark, tmp_path_factory, request):
    """A lake before and after, with tables of an audit from before, one continued after, and a new one."""
    root = tmp_path_factory.mktemp("compaction")
    lake = make_lake(root, request.param)
    shutil.copytree(lake, root / "old")
    before = audit(spark, lake, root / "out")
    shutil.copytree(root / "out", root / "out-before")
    summary = compact(spark, lake)
    again = audit(spark, lake, root / "out")
    # replaced files still exist for the continued audit, and are gone for the new one
    assert compact(spark, lake, grace_s=0).deleted_files > 0
    fresh = audit(spark, lake, root / "fresh")
    return root, summary, before, again, fresh


def test_one_manifest_a_day_and_fewer_files_of_powers_of_two(compacted):
    root, summary, *_ = compacted
    manifests = manifests_of(root / "lake")
    servers = {manifest.server for manifest in manifests}
    assert len(manifests) == len(servers) == summary.manifests_after
    assert summary.manifests_before == len(manifests_of(root / "old"))
    assert summary.files_after == sum(len(manifest.files) for manifest in manifests) < summary.files_before
    present = {str(path.relative_to(root / "lake")) for path in (root / "lake").glob("fabric=*/*/*")}
    assert present == {file.path for manifest in manifests for file in manifest.files}
    assert all(file.rows & (file.rows - 1) == 0 for manifest in manifests for file in manifest.files)


def test_rows_are_the_same_but_for_expired_bytes(compacted):
    root, summary, *_ = compacted
    old, new = rows_of(root / "old"), rows_of(root / "lake")
    assert old.keys() == new.keys()
    removed = [key for key in old if old[key]["raw"] is not None and new[key]["raw"] is None]
    assert len(removed) == summary.removed_messages > 15
    assert sum(len(old[key]["raw"]) for key in removed) == summary.removed_bytes
    for key, row in old.items():
        assert {**new[key], "raw": None} == {**row, "raw": None}
        assert new[key]["raw"] in (None, row["raw"])


def test_nothing_is_removed_that_has_no_end_or_cannot_be_read(compacted):
    root, *_ = compacted
    old, new = rows_of(root / "old"), rows_of(root / "lake")
    for key, row in old.items():
        if (row["raw"] or b"").startswith((b"\x01garbage", b"\x79\x10\x05short")):
            assert new[key]["raw"] == row["raw"]


@pytest.mark.parametrize("which", ["again", "fresh"])
def test_the_tables_are_the_same(compacted, which):
    root, *_ = compacted
    old, new = tables_of(root / "out-before"), tables_of(root / ("out" if which == "again" else "fresh"))
    for name in old:
        assert new[name] == old[name], name


def test_summaries_are_the_same_and_all_checkpoints_still_proven(compacted):
    _, _, before, again, fresh = compacted
    assert before == again == fresh
    assert {server.verdict for server in fresh.servers} == {"proven"}


def test_it_is_idempotent(compacted, spark):
    root, *_ = compacted
    files = {path: path.stat().st_mtime_ns for path in (root / "lake").rglob("*") if path.is_file()}
    summary = compact(spark, root / "lake")
    assert (summary.removed_messages, summary.manifests_before) == (0, summary.manifests_after)
    assert {path: path.stat().st_mtime_ns for path in (root / "lake").rglob("*") if path.is_file()} == files


def test_sealing_goes_on_after_it(compacted, tmp_path):
    root, *_ = compacted
    shutil.copytree(root, tmp_path / "copy")
    lake = tmp_path / "copy" / "lake"
    end = manifests_of(lake, BROKER)[-1].end
    append_and_seal(tmp_path / "copy", lake, BROKER, quiet_pcp(2, T0_US + 5 * 86_400 * SECOND))
    assert [(m.first_seq, m.number) for m in manifests_of(lake, BROKER)] == [(0, 3), (end, 4)]


def test_receipts_of_what_lost_its_bytes_have_only_the_address(compacted):
    root, *_ = compacted
    old, new = rows_of(root / "old"), rows_of(root / "lake")
    gone = next(
        row["message"]
        for key, row in old.items()
        if key[0] == BROKER and row["stage"] == "accepted" and row["raw"] and new[key]["raw"] is None
    )
    built = build_receipt(open_lake(LocalStore(root / "lake")), Address(gone))
    assert built.remarks == ["the bytes of the message are not kept any more: the receipt has only its address"]
    report = verify_receipt(built.data, [signer_of(BROKER).verifier])
    whole = verify_receipt(
        build_receipt(open_lake(LocalStore(root / "old")), Address(gone)).data, [signer_of(BROKER).verifier]
    )
    assert report.hops == whole.hops
    assert (report.messages[0].raw, bool(whole.messages[0].raw)) == (None, True)


def facts_of(lake: Path):
    return [learn_manifest(LocalStore(lake), str(path.relative_to(lake))) for path in manifest_files(lake, BROKER)]


def test_what_was_kept_is_missed_when_it_is_gone_or_altered(compacted, spark):
    root, *_ = compacted
    lake = root / "lake"
    store, facts = LocalStore(lake), facts_of(lake)
    announced = announced_files(facts)
    kept = next(file.retained for _, file in announced if file.retained is not None)
    files = learn_files(spark, store, announced)
    trusted = [COMPACTOR.verifier]
    checked = check_retained(store, announced, files, trusted)
    assert [fact.kept_error for fact in checked] == [None] * len(files)
    assert store.url(kept.path) in retained_urls(store, announced, checked)
    unsigned = check_retained(store, announced, files, ())
    assert retained_urls(store, announced, unsigned) == []
    assert {item.check for item in judge_servers(facts, unsigned)[0].breaks} == {"integrity.kept_unsigned"}
    read = {BROKER: [(0, 1 << 20)]}
    again = check_retained(store, announced, files, (), read)
    assert [fact.kept_error for fact in again] == [None] * len(files), "nothing needs them"
    assert retained_urls(store, announced, again) == []
    data = (lake / kept.path).read_bytes()
    try:
        (lake / kept.path).write_bytes(data + b"x")
        checked = check_retained(store, announced, files, trusted)
        assert store.url(kept.path) not in retained_urls(store, announced, checked)
        (verdict,) = judge_servers(facts, checked)
        assert [item.check for item in verdict.breaks] == ["integrity.kept_lost"]
        (lake / kept.path).unlink()
        checked = check_retained(store, announced, files, trusted)
        assert [fact.kept_error for fact in checked if fact.kept_error] == ["No such file or directory"]
    finally:
        (lake / kept.path).write_bytes(data)


def forge_retained(lake: Path, **fields: object) -> int:
    """Change the retained fields of all messages, as somebody does who has no key; returns of how many files."""
    store, forged = LocalStore(lake), 0
    for path in manifest_files(lake, BROKER):
        manifest = learn_manifest(store, str(path.relative_to(lake))).manifest
        files = []
        for file in manifest.files:
            if (old := file.retained) is not None:
                rows = pq.read_table(lake / old.path, partitioning=None)
                rows = pa.Table.from_pylist([row | fields for row in rows.to_pylist()], schema=rows.schema)
                pq.write_table(rows, lake / old.path, compression="zstd")
                new = {"bytes": (lake / old.path).stat().st_size, "sha256": sha256_of(store, old.path)}
                file = msgspec.structs.replace(file, retained=msgspec.structs.replace(old, **new))
                forged += 1
            files.append(file)
        path.write_bytes(encode_manifest(msgspec.structs.replace(manifest, files=files)))
    return forged


def test_retained_fields_that_somebody_without_a_key_altered_change_no_answer(spark, tmp_path):
    lake = make_lake(tmp_path, "pcp")
    compact(spark, lake, grace_s=0)
    trusted = trusted_of(lake)
    forged = {"sender": "pcp://mallory/agent", "recipients": ["pcp://mallory/agent"], "expires_us": T0_US}
    assert forge_retained(lake, **forged) > 0
    audit(spark, lake, tmp_path / "forged", trusted)
    for path in (lake / "_kept").rglob("*.parquet"):
        path.unlink()
    audit(spark, lake, tmp_path / "gone", trusted)
    tables = [tables_of(tmp_path / name) for name in ("forged", "gone")]
    assert tables[0] == tables[1], "they are not read"
    assert any("integrity.kept_unsigned" in row for row in tables[0]["findings"])
    assert {row["verdict"] for row in open_tables(tmp_path / "forged").scan("integrity")} == {"proven"}
    rows = [repr(row) for rows in tables[0].values() for row in rows]
    assert not any("mallory" in row for row in rows)


def test_an_earlier_checkpoint_that_was_changed_is_found(compacted, spark):
    root, *_ = compacted
    lake = root / "lake"
    (fact,) = facts_of(lake)
    files = learn_files(spark, LocalStore(lake), announced_files([fact]))
    assert judge_servers([fact], files)[0].proven_checkpoints == 3
    first, second = fact.manifest.earlier
    for changed in (
        msgspec.structs.replace(first, proof=second.proof),
        msgspec.structs.replace(first, note=first.note.replace("\n— ", "x\n— ")),
        msgspec.structs.replace(first, end=second.end + 1),
    ):
        manifest = msgspec.structs.replace(fact.manifest, earlier=[changed, second])
        (verdict,) = judge_servers([msgspec.structs.replace(fact, manifest=manifest)], files)
        assert {item.check for item in verdict.breaks} == {"integrity.root_mismatch"}
        assert (verdict.checkpoints, verdict.proven_checkpoints) == (3, 2)


# between two runs


def test_an_audit_between_a_compaction_and_the_deletion_finds_nothing(spark, tmp_path):
    lake = LocalStore(
        write_lake(tmp_path, *({BROKER: quiet_pcp(3, T0_US + n * 600 * SECOND, 1 + 10 * n)} for n in range(3)))
    )
    compact(spark, lake.root)
    manifests = [learn_manifest(lake, entry.key) for entry in lake.list("_manifests/")]
    facts = active_facts(BatchFacts(manifests=manifests, files=[]), ())
    assert len(facts.manifests) == 1
    (verdict,) = judge_servers(facts.manifests, learn_files(spark, lake, announced_files(facts.manifests)))
    assert (verdict.verdict, verdict.breaks, verdict.hops, verdict.checkpoints) == ("proven", [], 18, 3)
