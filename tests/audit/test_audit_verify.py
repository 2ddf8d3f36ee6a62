"""`audit verify`: everything that was audited and has changed since is named, with its server."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from audit.audit_worlds import BROKER, SECOND, SETTINGS, T0_US, append_and_seal, quiet_pcp, write_lake
from dovetail.audit import ingest_log
from dovetail.audit.ingest_log import fact_rows
from dovetail.audit.run import Audit
from dovetail.audit.runs import publish, writing
from dovetail.audit.tables import Run, open_tables
from dovetail.audit.warehouse import Warehouse
from dovetail.cli.main import main
from dovetail.lake.compact import Compaction
from dovetail.lake.layout import server_slug
from dovetail.lake.rollup import read_log, rollup_key
from dovetail.lake.snapshot import manifest_tags, snapshot
from dovetail.lake.store import LocalStore
from dovetail.model.times import to_datetime
from lake.hostile_lakes import HONEST, write_honest
from lake.test_hostile_lakes import learn_here

VICTIM = HONEST[0]


@pytest.fixture
def audited(tmp_path):
    """A lake, and the tables of a run that has read all of it."""
    lake = write_honest(tmp_path)
    note_run(lake, tmp_path / "out")
    return lake, tmp_path / "out"


def note_run(lake, out) -> None:
    warehouse = Warehouse(None, str(out))
    with writing(warehouse):
        warehouse.append_arrow("ingest", fact_rows(learn_here(lake), warehouse.run))
        publish(warehouse, Run(number=warehouse.run, lake=str(lake), as_of_us=T0_US), is_whole=True)


def verify(out, capsys, *words) -> tuple[int, dict]:
    code = main(["audit", "verify", *map(str, words), "--tables", str(out), "--json"])
    return code, json.loads(capsys.readouterr().out)


def files_of(lake, server=VICTIM):
    return [lake / file.path for manifest in snapshot(LocalStore(lake)).servers[server] for file in manifest.files]


def test_what_is_as_it_was(audited, capsys):
    lake, out = audited
    code, found = verify(out, capsys)
    assert (code, found["problems"], found["manifests"]) == (0, [], len(HONEST))
    sizes = [path.stat().st_size for server in HONEST for path in files_of(lake, server)]
    assert (found["files"], found["bytes"]) == (len(sizes), sum(sizes))
    assert main(["audit", "verify", str(lake), "--tables", str(out)]) == 0
    assert "are unchanged since run 1 and earlier runs read them" in capsys.readouterr().out


def flip(path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


HARMS = {
    "bit": (flip, "its bytes have changed since it was read"),
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b"x"), "its bytes have changed since it was read"),
    "empty": (lambda path: path.write_bytes(b""), "its bytes have changed since it was read"),
    "gone": (lambda path: path.unlink(), "it is gone"),
    "link": (lambda path: (path.rename(path.with_suffix(".x")), path.symlink_to(path.with_suffix(".x"))), "a link"),
    "pipe": (lambda path: (path.unlink(), os.mkfifo(path)), "is not a plain file"),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_file_that_was_altered_or_is_gone_is_named_with_its_server(audited, capsys, harm):
    lake, out = audited
    path = files_of(lake)[-1]
    change, words = HARMS[harm]
    change(path)
    code, found = verify(out, capsys)
    (problem,) = found["problems"]
    assert (code, problem["server"], problem["file"]) == (3, VICTIM, str(path.relative_to(lake)))
    assert words in problem["problem"]
    assert main(["audit", "verify", "--tables", str(out)]) == 3
    assert f"{VICTIM}: {path.relative_to(lake)}: " in capsys.readouterr().out


def test_bytes_are_read_whatever_the_listing_says(audited, capsys, monkeypatch):
    lake, out = audited
    path = files_of(lake)[0]
    flip(path)
    tables = open_tables(out)
    known = ingest_log.facts_of(tables.read("ingest"))
    tags = {fact.path: fact.tag for fact in known.files}
    present = {key: entry._replace(tag=tags[key]) for key, entry in ingest_log.present_files(LocalStore(lake)).items()}
    assert ingest_log.altered_files(LocalStore(lake), present, known.files) == ([], []), "a run does not see it"
    assert verify(out, capsys)[0] == 3


def test_a_manifest_that_changed_or_is_gone(audited, capsys):
    lake, out = audited
    (path,) = (lake / "_manifests" / server_slug(VICTIM)).glob("*.json")
    data = path.read_bytes()
    path.write_bytes(data + b"\n")
    _, found = verify(out, capsys)
    assert [(item["server"], item["problem"]) for item in found["problems"]] == [
        (VICTIM, "the manifest has changed since it was first read")
    ]
    path.unlink()
    code, found = verify(out, capsys)
    assert (code, found["problems"][0]["problem"]) == (3, "the manifest is gone")
    path.write_bytes(data)
    assert verify(out, capsys)[0] == 0


def test_a_manifest_that_was_never_readable_is_not_missed(tmp_path, capsys):
    lake = write_honest(tmp_path)
    planted = lake / "_manifests" / server_slug(VICTIM) / f"{1:019d}.json"
    planted.write_bytes(b"{}")
    note_run(lake, tmp_path / "out")
    planted.unlink()
    assert verify(tmp_path / "out", capsys)[0] == 0


def test_a_roll_up_that_lies_about_a_manifest(tmp_path, capsys):
    lake = tmp_path / "lake"
    for number in range(65):
        append_and_seal(tmp_path, lake, BROKER, quiet_pcp(1, T0_US + number * SECOND, number))
    note_run(lake, tmp_path / "out")
    assert verify(tmp_path / "out", capsys)[0] == 0
    store = LocalStore(lake)
    assert read_log(store, server_slug(BROKER)).rollups
    path = lake / rollup_key(server_slug(BROKER), 1, 0)
    lines = path.read_bytes().split(b"\n")
    key, manifest = json.loads(lines[0])
    manifest["files"][0]["sha256"] = "0" * 64
    path.write_bytes(b"\n".join([json.dumps([key, manifest]).encode(), *lines[1:]]))
    code, found = verify(tmp_path / "out", capsys)
    assert (code, [(each["server"], each["file"]) for each in found["problems"]]) == (
        3,
        [(BROKER, rollup_key(server_slug(BROKER), 1, 0))],
    )
    assert found["problems"][0]["problem"] == f"its copy of {key} differs or is missing"


def test_what_a_compaction_replaced_is_not_missed_and_what_it_retained_is_read(tmp_path, capsys):
    lake = write_lake(tmp_path, {BROKER: quiet_pcp(8)})
    note_run(lake, tmp_path / "before")
    compaction = Compaction(store=LocalStore(lake), before=to_datetime(T0_US + 10 * 86_400 * SECOND), grace_s=0)
    deleted = [compaction.run().deleted_files for _ in range(2)]
    assert any(deleted)
    note_run(lake, tmp_path / "out")
    assert verify(tmp_path / "before", capsys)[0] == 0, "a later run of the audit reads what took its place"
    assert verify(tmp_path / "out", capsys)[0] == 0
    (kept,) = [
        file.retained.path
        for manifest in snapshot(LocalStore(lake)).manifests()
        for file in manifest.files
        if file.retained is not None
    ]
    flip(lake / kept)
    code, found = verify(tmp_path / "out", capsys)
    assert (code, found["problems"][0]["file"]) == (3, kept)


def test_what_cannot_be_verified_is_one_line(audited, capsys, tmp_path):
    lake, out = audited
    assert main(["audit", "verify", "--tables", str(tmp_path / "nothing")]) != 0
    assert "holds no audit" in capsys.readouterr().err
    shutil.rmtree(lake)
    assert main(["audit", "verify", "--tables", str(out)]) != 0
    assert "is not a lake" in capsys.readouterr().err
    assert main(["audit", "verify", "--tables", str(out), "--run", "7"]) != 0
    assert "has no run 7" in capsys.readouterr().err


def test_a_lake_that_was_copied_is_read_once_and_told_nothing_of(spark, tmp_path, monkeypatch):
    lake = write_lake(tmp_path, {BROKER: quiet_pcp(4)})
    audit = Audit(spark=spark, lake=lake, tables=tmp_path / "out", settings=SETTINGS)
    assert audit.refresh().number == 1
    shutil.copytree(lake, tmp_path / "copy")
    shutil.rmtree(lake)
    (tmp_path / "copy").rename(lake)
    assert audit.refresh().number == 2
    assert {row["verdict"] for row in open_tables(tmp_path / "out").scan("integrity")} == {"proven"}
    store = LocalStore(lake)
    known = ingest_log.facts_of(open_tables(tmp_path / "out").read("ingest").sort_by("run"))
    monkeypatch.setattr(LocalStore, "get", None)  # nothing is read again
    monkeypatch.setattr(LocalStore, "open", None)
    assert ingest_log.changed_manifests(store, known.manifests, manifest_tags(store)) == ([], [])
    assert ingest_log.altered_files(store, ingest_log.present_files(store), known.files) == ([], [])
    monkeypatch.undo()
    assert Audit(spark=spark, lake=lake, tables=tmp_path / "out", settings=SETTINGS).refresh().number == 2
