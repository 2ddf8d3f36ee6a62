"""Compaction and deletion: the same hops from fewer files; interrupted anywhere, readers see the old or the new."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import tarfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from audit.audit_worlds import (
    BROKER,
    COMPACTOR,
    PEERS,
    SECOND,
    T0_US,
    append_and_seal,
    quiet_pcp,
    signer_of,
    write_lake,
)
from dovetail.lake.compact import Compaction, parse_before, run_here, run_in_processes
from dovetail.lake.layout import INDEXES, RETAINED, manifest_prefix
from dovetail.lake.manifest import RetainedFile
from dovetail.lake.reader import open_lake
from dovetail.lake.retain import ORPHAN_AGE_S, announced_keys, sweep
from dovetail.lake.retained import is_signed
from dovetail.lake.snapshot import snapshot
from dovetail.lake.store import SCRATCH, LocalStore, Store
from dovetail.model.errors import UsageError
from lake.dying_store import Killed, die
from lake.lakes import files_in, manifest_file, manifest_files, manifests_of
from lake.test_lake_snapshot import VECTOR

T0 = dt.datetime.fromtimestamp(T0_US / 1e6, dt.UTC)
DAY = dt.timedelta(days=1)
DAY_S = 86_400


def quiet_lake(root: Path, parts: int = 3) -> Path:
    """Sealed several times on one day; the journal is next to it."""
    worlds = [quiet_pcp(3, T0_US + part * 600 * SECOND, 1 + 10 * part) for part in range(parts)]
    return write_lake(root, *({BROKER: world} for world in worlds))


def compact(lake: Path | Store, **options):
    store = LocalStore(lake) if isinstance(lake, Path) else lake
    return Compaction(store=store, **({"before": T0 + 2 * DAY} | options)).run()


def rows_of(lake: Path) -> dict[tuple[str, int], dict]:
    """Every row that the manifests announce; each hop once, from files that all exist."""
    rows = {}
    for manifest in manifests_of(lake):
        for file in manifest.files:
            for row in pq.read_table(lake / file.path, partitioning=None).to_pylist():
                assert (row["server"], row["seq"]) not in rows
                rows[row["server"], row["seq"]] = row
    return rows


def age(lake: Path, seconds: float) -> None:
    """Make everything in the lake this old."""
    for path in lake.rglob("*"):
        if path.is_file():
            then = path.stat().st_mtime - seconds
            os.utime(path, (then, then))


def announced(lake: Path) -> set[str]:
    """The active objects, and their manifests."""
    return announced_keys(manifests_of(lake)) | {str(path.relative_to(lake)) for path in manifest_files(lake)}


def test_one_manifest_replaces_those_of_a_day(tmp_path):
    lake = quiet_lake(tmp_path)
    old = rows_of(lake)
    summary = compact(lake)
    (manifest,) = manifests_of(lake)
    assert (manifest.number, manifest.replaces, len(manifest.earlier)) == (3, [0, 1, 2], 2)
    assert (summary.manifests_before, summary.manifests_after, summary.removed_messages) == (3, 1, 9)
    new = rows_of(lake)
    assert [{**row, "raw": None} for row in old.values()] == list(new.values())
    assert open_lake(LocalStore(lake))[0].find(new[BROKER, 0]["message"]) == {new[BROKER, 0]["message"]}
    assert compact(lake).removed_messages == 0
    assert [item.number for item in manifests_of(lake)] == [3]


def test_replaced_files_stay_for_the_grace_time(tmp_path):
    lake = quiet_lake(tmp_path)
    before = files_in(lake)
    held = open_lake(LocalStore(lake))
    summary = compact(lake)
    assert before < files_in(lake)
    assert (summary.deleted_files, summary.waiting_files) == (0, len(before) - 3)
    assert [hop.hop.seq for hop in held[0].hops_between(0, 18)] == list(range(18)), "a reader of the old snapshot"
    assert held[0].raw(held[0].hops_between(4, 5)[0].hop.message)
    age(lake, DAY_S - 60)
    assert compact(lake).deleted_files == 0
    age(lake, 120)
    summary = compact(lake)
    assert (summary.deleted_files, summary.waiting_files) == (len(before) - 3, 0)
    assert files_in(lake) == announced(lake)
    assert not list((lake / SCRATCH).iterdir())


def test_without_a_grace_time_replaced_files_go_at_once(tmp_path):
    lake = quiet_lake(tmp_path)
    summary = compact(lake, grace_s=0)
    assert summary.text().splitlines()[2].startswith(f"deleted {summary.deleted_files} replaced files (")
    assert files_in(lake) == announced(lake)


def test_files_of_a_sealing_under_way_are_never_deleted(tmp_path):
    lake = quiet_lake(tmp_path)
    # a sealing in progress: its hops come after what is sealed
    pending = "fabric=pcp/date=2025-11-15/{}.{:019d}-{:019d}.0123abcd.parquet"
    slug = manifest_prefix(BROKER).split("/")[1]
    (lake / pending.format(slug, 18, 19)).write_bytes(b"pending")
    (lake / pending.format(slug, 16, 17)).write_bytes(b"left by a sealing that another one overtook")
    (lake / "fabric=pcp/date=2025-11-15/notes.txt").write_bytes(b"not ours")
    age(lake, 10 * DAY_S)
    assert sweep(LocalStore(lake)).files == 1
    assert (lake / pending.format(slug, 18, 19)).exists()
    assert (lake / "fabric=pcp/date=2025-11-15/notes.txt").exists()
    (lake / pending.format(slug, 16, 17)).write_bytes(b"young")
    assert sweep(LocalStore(lake)).files == 0


def test_files_of_a_compaction_that_never_ended_go_after_a_day(tmp_path):
    lake = quiet_lake(tmp_path)

    def end_early(rewriter, tasks):
        yield from run_here(rewriter, tasks)
        raise Killed

    with pytest.raises(Killed):
        compact(lake, run_tasks=end_early)
    assert announced(lake) < files_in(lake)
    assert sweep(LocalStore(lake)).files == 0
    age(lake, ORPHAN_AGE_S + 60)
    assert sweep(LocalStore(lake)).files > 0
    assert files_in(lake) == announced(lake)


def test_a_manifest_that_cannot_be_read_stops_deletion_for_its_server(tmp_path):
    lake = quiet_lake(tmp_path)
    compact(lake)
    age(lake, 2 * DAY_S)
    manifest_files(lake)[0].with_name(f"{77:019d}.json").write_bytes(b"?")
    before = files_in(lake)
    summary = compact(lake)
    assert "is not a manifest" in summary.left_alone[0].why
    assert files_in(lake) == before


def test_two_compactions_at_once_one_gives_way(tmp_path):
    lake = quiet_lake(tmp_path)

    def run_second(rewriter, tasks):
        yield from run_here(rewriter, tasks)
        if len(manifests_of(lake)) == 3:
            compact(lake)

    before = rows_of(lake)
    summary = compact(lake, run_tasks=run_second)
    assert [item.why for item in summary.left_alone] == ["another compaction replaced these manifests meanwhile"]
    assert rows_of(lake).keys() == before.keys()
    assert files_in(lake) >= announced(lake)
    age(lake, 2 * DAY_S)
    compact(lake)
    assert files_in(lake) == announced(lake)


def test_sealing_goes_on_meanwhile(tmp_path):
    lake = quiet_lake(tmp_path)

    def seal_meanwhile(rewriter, tasks):
        yield from run_here(rewriter, tasks)
        append_and_seal(tmp_path, lake, BROKER, quiet_pcp(1, T0_US + 5 * DAY_S * SECOND, 90))

    assert compact(lake, run_tasks=seal_meanwhile).left_alone == []
    assert [(item.number, item.first_seq) for item in manifests_of(lake)] == [(4, 0), (3, 18)]


def test_a_compaction_that_took_too_long_does_not_announce_what_others_may_delete(tmp_path, monkeypatch):
    lake = quiet_lake(tmp_path)

    def take_long(rewriter, tasks):
        yield from run_here(rewriter, tasks)
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + ORPHAN_AGE_S)

    summary = compact(lake, run_tasks=take_long)
    assert "took so long" in summary.left_alone[0].why
    assert len(manifests_of(lake)) == 3


def retained_in(lake: Path) -> list[RetainedFile]:
    files = [file for manifest in manifests_of(lake) for file in manifest.files]
    return [file.retained for file in files if file.retained is not None]


def test_what_it_retains_is_signed_if_there_is_a_key_and_by_no_server(tmp_path):
    lake = quiet_lake(tmp_path)
    assert "give --signing-key" in compact(lake, grace_s=0).text()
    assert [one.signature for one in retained_in(lake)] == [""] * len(retained_in(lake)) != []
    signed = quiet_lake(tmp_path / "signed")
    assert "give" not in compact(signed, signer=COMPACTOR).text()
    assert retained_in(signed)
    assert all(is_signed(one, [COMPACTOR.verifier]) for one in retained_in(signed))
    with pytest.raises(UsageError, match="is the key of a server"):
        compact(signed, signer=signer_of(BROKER))


@pytest.mark.system
def test_other_processes_do_the_same(tmp_path):
    lake = quiet_lake(tmp_path)
    summary = compact(lake, run_tasks=run_in_processes, target_bytes=1)
    assert (summary.removed_messages, summary.left_alone, len(manifests_of(lake))) == (9, [], 1)
    assert {row["raw"] for row in rows_of(lake).values()} == {None}


def test_what_is_not_as_it_was_sealed_is_left_alone(tmp_path):
    lake = quiet_lake(tmp_path)
    victim = manifests_of(lake)[1].files[0]
    rows = pq.read_table(lake / victim.path, partitioning=None).to_pylist()
    rows[1]["counterpart"] = "pcp://mallory/agent"
    pq.write_table(pa.Table.from_pylist(rows, schema=pq.read_schema(lake / victim.path)), lake / victim.path)
    before = {key: (lake / key).read_bytes() for key in files_in(lake)}
    summary = compact(lake)
    (left,) = summary.left_alone
    assert (left.server, left.hops, summary.removed_messages) == (BROKER, "0 to 17", 0)
    assert "not as it was sealed" in left.why
    assert {key: (lake / key).read_bytes() for key in files_in(lake)} == before


def test_a_dry_run_tells_the_same_and_changes_nothing(tmp_path):
    lake = quiet_lake(tmp_path)
    before = files_in(lake)
    dry = compact(lake, is_dry=True)
    assert files_in(lake) == before
    real = compact(lake)
    names = ("manifests_before", "manifests_after", "files_before", "files_after", "removed_messages", "removed_bytes")
    assert [getattr(dry, name) for name in names] == [getattr(real, name) for name in names]
    assert (real.removed_messages, real.manifests_after, real.left_alone) == (9, 1, [])
    assert real.text().startswith("9 messages expired before")
    assert real.files_after < real.files_before


def test_a_missing_manifest_leaves_its_server_alone(tmp_path):
    lake = quiet_lake(tmp_path)
    append_and_seal(tmp_path, lake, PEERS[0], quiet_pcp(1))
    append_and_seal(tmp_path, lake, PEERS[0], quiet_pcp(1, T0_US + SECOND, 9))
    manifest_files(lake, BROKER)[1].unlink()
    (left,) = compact(lake).left_alone
    assert "are in no manifest" in left.why
    assert len(snapshot(LocalStore(lake)).servers[PEERS[0]]) == 1


@pytest.mark.parametrize("text", ["tomorrow", "2026-13-01", "2026-11-01T00:00:00", "", "9999-01-01"])
def test_dates_that_cannot_be_meant(text):
    with pytest.raises(UsageError, match="--before"):
        parse_before(text, T0)


def test_a_date_is_the_beginning_of_its_day_in_utc():
    assert parse_before("2025-11-15", T0) == dt.datetime(2025, 11, 15, tzinfo=dt.UTC)


# interrupted


def crash(lake: Path, call: int, *, is_after: bool = False, **options) -> bool:
    return die(LocalStore(lake), lambda store: compact(store, **options), call, is_after=is_after)


@pytest.mark.exhaustive
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("grace_s", [0, DAY_S])
def test_a_compaction_killed_at_any_call_leaves_the_old_or_the_new(tmp_path, is_after, grace_s):
    template = quiet_lake(tmp_path, 2)
    before = rows_of(template)
    for call in range(1, 200):
        lake = Path(shutil.copytree(template, tmp_path / str(call)))
        is_killed = crash(lake, call, is_after=is_after, grace_s=grace_s)
        # a reader after the crash sees every hop once, from files that all exist
        after = rows_of(lake)
        is_new = [manifest.number for manifest in manifests_of(lake)] == [2]
        assert is_new or is_killed
        assert after.keys() == before.keys()
        assert {row["raw"] for row in after.values()} == ({None} if is_new else {row["raw"] for row in before.values()})
        assert open_lake(LocalStore(lake))[0].find(before[BROKER, 0]["message"])
        # and the next compaction completes this one
        compact(lake)
        assert {row["raw"] for row in rows_of(lake).values()} == {None}
        age(lake, ORPHAN_AGE_S + 60)
        sweep(LocalStore(lake))
        assert files_in(lake) == announced(lake)
        if not is_killed:
            break
    assert call > 15


# planted


@pytest.fixture
def precious(tmp_path) -> Path:
    path = tmp_path / "precious.parquet"
    path.write_bytes(b"precious")
    return path


def plant(lake: Path, precious: Path, *, is_numbered: bool) -> None:
    """An inactive manifest whose files are somewhere else."""
    if is_numbered:
        (manifest,) = manifests_of(lake, BROKER)
        source, name = manifest_file(lake, manifest), f"{0:019d}"
        changes = {"number": 0, "replaces": []}
    else:
        source = min(path for path in manifest_files(lake, BROKER) if ".g0" in path.name)
        name, changes = source.name.split(".")[0], {"format": 1, "generation": 0}
    record = json.loads(source.read_text()) | changes
    for file in record["files"]:
        file["path"] = str(precious)
        file.pop("kept", None)
    source.with_name(f"{name}.json").write_text(json.dumps(record))


@pytest.mark.parametrize("is_numbered", [True, False])
def test_a_planted_manifest_deletes_nothing_outside(tmp_path, precious, is_numbered):
    if is_numbered:
        lake = quiet_lake(tmp_path)
        compact(lake, grace_s=0)
    else:
        with tarfile.open(VECTOR) as archive:
            archive.extractall(tmp_path, filter="data")
        lake = tmp_path / "lake"
    plant(lake, precious, is_numbered=is_numbered)
    age(lake, 2 * DAY_S)
    before = rows_of(lake)
    compact(lake, grace_s=0)
    assert precious.read_bytes() == b"precious"
    assert rows_of(lake).keys() == before.keys()


def test_a_directory_that_is_a_link_is_neither_read_nor_cleared(tmp_path):
    lake = quiet_lake(tmp_path)
    compact(lake, grace_s=0)
    outside = tmp_path / "outside"
    for name in ("fabric=pcp", INDEXES, RETAINED):
        (lake / name).rename(outside.with_name(f"outside-{name}"))
        (lake / name).symlink_to(outside.with_name(f"outside-{name}"))
    before = sorted(tmp_path.rglob("*"))
    age(lake, 9 * DAY_S)
    summary = compact(lake, grace_s=0, target_bytes=1, before=T0 + 9 * DAY)
    assert summary.deleted_files == 0
    assert sorted(tmp_path.rglob("*")) == before
    assert open_lake(LocalStore(lake))[0].size == 18


def test_a_lake_of_format_2_is_compacted_on(tmp_path):
    with tarfile.open(VECTOR) as archive:
        archive.extractall(tmp_path, filter="data")
    lake = tmp_path / "lake"
    before = rows_of(lake)
    summary = compact(lake, before=T0 + 10 * DAY, grace_s=0)
    assert (summary.left_alone, summary.removed_messages) == ([], 1)
    kept, new = manifests_of(lake, BROKER)
    assert (kept.format, new.format, new.number) == (2, 3, 0)
    assert new.replaces == ["0000000000000000010-0000000000000000011"]
    assert [{**row, "raw": None} for key, row in before.items() if key[0] == BROKER] == [
        row for key, row in rows_of(lake).items() if key[0] == BROKER
    ]
    assert files_in(lake) == announced(lake)
