"""Compaction: fewer files, no expired bytes, and the same answers; killed anywhere, readers see the old or the new."""

from __future__ import annotations

import datetime as dt
import random
import shutil
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from audit.audit_worlds import (
    BROKER,
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
from dovetail.audit.active_manifests import standing_facts
from dovetail.audit.ingest_log import BatchFacts, learn_manifest
from dovetail.audit.integrity import judge_servers
from dovetail.audit.jobs.compact import Compaction, parse_before
from dovetail.audit.jobs.run import Audit
from dovetail.audit.lock import changing, reading
from dovetail.audit.reading import open_table
from dovetail.audit.settings import AuditSettings, SwarmRules
from dovetail.audit.sources import announced_files, check_kept, kept_paths, learn_files
from dovetail.audit.store import Store
from dovetail.lake.index import index_path
from dovetail.lake.manifest import manifest_paths, read_manifests
from dovetail.lake.reader import open_lake
from dovetail.model.address import Address
from dovetail.model.errors import PipelineError, UsageError
from dovetail.receipt.build import build_receipt
from dovetail.receipt.verify import verify_receipt

pytestmark = pytest.mark.timeout(900)

T0 = dt.datetime.fromtimestamp(T0_US / 1e6, dt.UTC)
DAY = dt.timedelta(days=1)
RULES = SwarmRules(epoch_ms=EPOCH_MS, pow_target=(1 << 256) - 1)
WITH_SWARM = AuditSettings(swarms={"": RULES, "test": RULES})


def make_lake(root: Path, fabrics: str) -> Path:
    """Sealed three times on one day; most pcp messages live for an hour, swarm messages for a minute or ten hours."""
    rng = random.Random(7)
    starts = [T0_US + part * 100 * SECOND for part in range(3)]
    if fabrics == "all":
        return write_lake(root, *(whole_world(7, 8, start_us) for start_us in starts))
    return write_lake(root, *(pcp_world(rng, 12, 1 + 100 * part, start_us) for part, start_us in enumerate(starts)))


def compact(spark, lake: Path, **options):
    given = {"before": T0 + 2 * DAY, "settings": WITH_SWARM, "wait_s": 0} | options
    return Compaction(spark=spark, lake=lake, **given).run()


def audit(spark, lake: Path, out: Path):
    return Audit(spark=spark, lake=lake, store=Store.open(out), settings=SETTINGS).run()


def tables_of(out: Path, leave=("has_bytes",)) -> dict[str, list[str]]:
    """All rows of all tables, in an order of their own."""
    return {
        table.name: sorted(
            repr(sorted((name, value) for name, value in row.items() if name not in leave))
            for row in open_table(out, table.name).to_table().to_pylist()
        )
        for table in schemas.TABLES
    }


def rows_of(lake: Path) -> dict[tuple[str, int], dict]:
    """Every row that the manifests announce."""
    rows = {}
    for manifest in read_manifests(lake):
        for file in manifest.files:
            for row in pq.read_table(lake / file.path, partitioning=None).to_pylist():
                assert (row["server"], row["seq"]) not in rows
                rows[row["server"], row["seq"]] = row
    return rows


@pytest.fixture(scope="module", params=["pcp", pytest.param("all", marks=pytest.mark.soak)])
def compacted(spark, tmp_path_factory, request):
    """A lake before and after, with tables of an audit that was there before, went on after, and came new."""
    root = tmp_path_factory.mktemp("compaction")
    lake = make_lake(root, request.param)
    shutil.copytree(lake, root / "old")
    before = audit(spark, lake, root / "out")
    shutil.copytree(root / "out", root / "out-before")
    summary = compact(spark, lake)
    again = audit(spark, lake, root / "out")
    fresh = audit(spark, lake, root / "fresh")
    return root, summary, before, again, fresh


def test_one_manifest_a_day_and_fewer_files_of_powers_of_two(compacted):
    root, summary, *_ = compacted
    manifests = read_manifests(root / "lake")
    servers = {manifest.server for manifest in manifests}
    assert len(manifests) == len(servers) == summary.manifests_after
    assert summary.manifests_before == len(read_manifests(root / "old"))
    assert summary.files_after == sum(len(manifest.files) for manifest in manifests) < summary.files_before
    lying = {str(path.relative_to(root / "lake")) for path in (root / "lake").glob("fabric=*/*/*")}
    assert lying == {file.path for manifest in manifests for file in manifest.files}
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
    end = read_manifests(lake, BROKER)[-1].end
    append_and_seal(tmp_path / "copy", lake, BROKER, quiet_pcp(2, T0_US + 5 * 86_400 * SECOND))
    assert [(m.first_seq, m.generation) for m in read_manifests(lake, BROKER)] == [(0, 1), (end, 0)]


def test_receipts_of_what_lost_its_bytes_have_only_the_address(compacted):
    root, *_ = compacted
    old, new = rows_of(root / "old"), rows_of(root / "lake")
    gone = next(
        row["message"]
        for key, row in old.items()
        if key[0] == BROKER and row["stage"] == "accepted" and row["raw"] and new[key]["raw"] is None
    )
    built = build_receipt(open_lake(root / "lake"), Address(gone))
    assert built.remarks == ["the bytes of the message are not kept any more: the receipt has only its address"]
    report = verify_receipt(built.data, [signer_of(BROKER).verifier])
    whole = verify_receipt(build_receipt(open_lake(root / "old"), Address(gone)).data, [signer_of(BROKER).verifier])
    assert report.hops == whole.hops
    assert (report.messages[0].raw, bool(whole.messages[0].raw)) == (None, True)


def test_what_was_kept_is_missed_when_it_is_gone_or_altered(compacted, spark):
    root, *_ = compacted
    lake = root / "lake"
    facts = [learn_manifest(lake, path) for path in manifest_paths(lake, BROKER)]
    announced = announced_files(facts)
    kept = next(file.kept for _, file in announced if file.kept is not None)
    files = learn_files(spark, lake, announced)
    assert check_kept(lake, announced, files) == files
    data = (lake / kept.path).read_bytes()
    try:
        (lake / kept.path).write_bytes(data + b"x")
        checked = check_kept(lake, announced, files)
        assert str(lake / kept.path) not in kept_paths(lake, announced, checked)
        (verdict,) = judge_servers(facts, checked)
        assert [item.check for item in verdict.breaks] == ["integrity.kept_lost"]
        (lake / kept.path).unlink()
        assert [fact.kept_error for fact in check_kept(lake, announced, files) if fact.kept_error] == [
            "No such file or directory"
        ]
    finally:
        (lake / kept.path).write_bytes(data)


def test_an_earlier_checkpoint_that_was_changed_is_found(compacted, spark):
    root, *_ = compacted
    lake = root / "lake"
    (fact,) = [learn_manifest(lake, path) for path in manifest_paths(lake, BROKER)]
    files = learn_files(spark, lake, announced_files([fact]))
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


# interrupted


class Crashed(Exception):
    pass


class Crash:
    """Dies at the step of this name."""

    def __init__(self, step: str) -> None:
        self.at = step

    def step(self, name: str) -> None:
        if name == self.at:
            raise Crashed(name)


STEPS = (
    "compact: write files",
    "compact: check what was written",
    "compact: announce",
    "compact: remove what was replaced",
    "compact: remove old manifests",
)


def quiet_lake(root: Path) -> Path:
    """Sealed three times; with the journal beside it."""
    parts = [quiet_pcp(3, T0_US + part * 600 * SECOND, 1 + 10 * part) for part in range(3)]
    return write_lake(root, *({BROKER: part} for part in parts))


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_readers_have_the_old_or_the_new(spark, tmp_path, step):
    lake = quiet_lake(tmp_path)
    before = rows_of(lake)
    with pytest.raises(Crashed):
        compact(spark, lake, progress=Crash(step))
    # a reader after the crash has every hop once, from files that are all there
    after = rows_of(lake)
    is_new = {manifest.generation for manifest in read_manifests(lake)} == {1}
    assert is_new == (STEPS.index(step) > 2)
    assert after.keys() == before.keys()
    assert {row["raw"] for row in after.values()} == ({None} if is_new else {row["raw"] for row in before.values()})
    assert open_lake(lake)[0].find(next(iter(before.values()))["message"])
    # and the next compaction ends what this one began
    compact(spark, lake)
    assert {row["raw"] for row in rows_of(lake).values()} == {None}
    (manifest,) = read_manifests(lake)
    lying = {str(path.relative_to(lake)) for path in lake.rglob("*.*") if path.is_file()}
    indexes = {path for path in lying if path.endswith(".index")}
    lying -= indexes
    assert indexes == {str(index_path(Path(), BROKER, file.path)) for file in manifest.files}
    own = {str(path.relative_to(lake)) for path in manifest_paths(lake)}
    own |= {file.path for file in manifest.files} | {file.kept.path for file in manifest.files if file.kept}
    assert {path for path in lying if not path.endswith(".lock")} == own


def test_an_audit_between_a_crash_and_the_next_compaction_finds_nothing(spark, tmp_path):
    lake = quiet_lake(tmp_path)
    with pytest.raises(Crashed):
        compact(spark, lake, progress=Crash("compact: remove what was replaced"))
    facts = standing_facts(
        BatchFacts(
            manifests=[learn_manifest(lake, path) for path in sorted(lake.glob("_manifests/*/*.json"))], files=[]
        )
    )
    assert len(facts.manifests) == 1
    (verdict,) = judge_servers(facts.manifests, learn_files(spark, lake, announced_files(facts.manifests)))
    assert (verdict.verdict, verdict.breaks, verdict.hops, verdict.checkpoints) == ("proven", [], 18, 3)


def test_what_is_not_as_it_was_sealed_is_left_alone(spark, tmp_path):
    lake = quiet_lake(tmp_path)
    victim = read_manifests(lake)[1].files[0]
    rows = pq.read_table(lake / victim.path, partitioning=None).to_pylist()
    rows[1]["counterpart"] = "pcp://mallory/agent"
    pq.write_table(pa.Table.from_pylist(rows, schema=pq.read_schema(lake / victim.path)), lake / victim.path)
    before = {path: path.read_bytes() for path in lake.rglob("*.*") if path.is_file()}
    summary = compact(spark, lake)
    (left,) = summary.left_alone
    assert (left.server, left.hops, summary.removed_messages) == (BROKER, "0 to 17", 0)
    assert "not those that were sealed" in left.why
    assert {path: path.read_bytes() for path in lake.rglob("*.*") if path.is_file()} == before


def test_a_dry_run_tells_the_same_and_changes_nothing(spark, tmp_path):
    lake = quiet_lake(tmp_path)
    before = sorted(lake.rglob("*"))
    dry = compact(spark, lake, is_dry=True)
    assert sorted(lake.rglob("*")) == before
    real = compact(spark, lake)
    names = ("manifests_before", "manifests_after", "files_before", "files_after", "removed_messages", "removed_bytes")
    assert [getattr(dry, name) for name in names] == [getattr(real, name) for name in names]
    assert (real.removed_messages, real.manifests_after, real.left_alone) == (9, 1, [])
    assert real.text().startswith("9 messages expired before")


def test_a_missing_manifest_leaves_its_server_alone(spark, tmp_path):
    lake = quiet_lake(tmp_path)
    manifest_paths(lake)[1].unlink()
    (left,) = compact(spark, lake).left_alone
    assert "are in no manifest" in left.why


def test_a_lake_that_is_being_read_is_not_compacted(spark, tmp_path):
    lake = quiet_lake(tmp_path)
    with reading(lake), pytest.raises(PipelineError, match="in use by an audit or another compaction"):
        compact(spark, lake)
    with reading(lake), reading(lake):
        pass
    with changing(lake, 0), pytest.raises(PipelineError), changing(lake, 0.2):
        pass


@pytest.mark.parametrize("text", ["tomorrow", "2026-13-01", "2026-11-01T00:00:00", "", "9999-01-01"])
def test_dates_that_cannot_be_meant(text):
    with pytest.raises(UsageError, match="--before"):
        parse_before(text, T0)


def test_a_date_is_the_beginning_of_its_day_in_utc():
    assert parse_before("2025-11-15", T0) == dt.datetime(2025, 11, 15, tzinfo=dt.UTC)


def test_a_reader_waits_for_a_compaction_and_can_be_called_off(tmp_path):
    lake = quiet_lake(tmp_path)
    told = []

    def call_off(text):
        told.append(text)
        raise Crashed

    with changing(lake, 0), pytest.raises(Crashed), reading(lake, call_off):
        pass
    assert told == ["wait for a compaction to end"]
