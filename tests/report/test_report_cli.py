from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dovetail.audit.tables import Tables
from dovetail.cli.report import app
from dovetail.lake.seal import seal_journal
from dovetail.lake.store import LocalStore
from dovetail.model.errors import DovetailError, PipelineError, UsageError
from dovetail.report.numbers import Numbers
from dovetail.tlog.checkpoint import Checkpoint, sign_checkpoint
from dovetail.tlog.note import cosign
from receipt import receipt_samples as samples
from report.sample_tables import BROKER, small_world


@pytest.mark.exhaustive
def test_it_writes_the_page_and_prints_the_summary(tables: Tables, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="the charts' library is not installed")
    out = tmp_path / "report.html"
    result = CliRunner().invoke(app, [str(tables.root), "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert "deliveries arrived" in result.stdout
    assert f"wrote {out}" in result.stderr
    assert out.read_text().lstrip().startswith("<!DOCTYPE html>")


@pytest.mark.exhaustive
def test_receipts_come_from_the_journals_or_the_lake_that_are_named(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="the charts' library is not installed")
    case = samples.pcp_case(tmp_path / "journals")
    seal_journal(case.journals[0], LocalStore(tmp_path / "lake"))
    world = small_world()
    world.find("delivery.lost", "pcp", case.address, at=1, detail="x")
    tables, out = world.write(tmp_path / "out"), tmp_path / "report.html"
    for options, is_there in (
        (["--journal", str(case.journals[0])], True),
        (["--lake", str(tmp_path / "lake")], True),
        (["--lake", str(tmp_path / "lake"), "--no-receipts"], False),
        ([], False),
    ):
        result = CliRunner().invoke(app, [str(tables), "-o", str(out), *options])
        assert result.exit_code == 0, result.output
        assert ("delivery/2" in out.read_text()) == is_there


def test_json_has_the_same_numbers(tables: Tables, numbers: Numbers) -> None:
    result = CliRunner().invoke(app, [str(tables.root), "--json"])
    found = json.loads(result.stdout)
    assert found["hops"] == numbers.hops
    assert sum(item["deliveries"] for item in found["outcomes"]) == numbers.deliveries
    assert set(found) == set(Numbers.__struct_fields__)


def test_cosigned_checkpoints_are_checked_with_the_given_keys(tables: Tables, tmp_path: Path) -> None:
    broker, witness = samples.signer_of(BROKER), samples.signer_of(samples.WITNESSES[0])
    signed = sign_checkpoint(Checkpoint(BROKER, 7, bytes(32)), broker)
    folder = tmp_path / "cosigned"
    folder.mkdir()
    (folder / "a.note").write_text(signed.note + cosign(signed.checkpoint, witness, 1_780_000_000))
    keys = tmp_path / "keys"
    keys.write_text("".join(f"{key.text()}\n" for key in (broker.verifier, witness.verifier)))
    words = [str(tables.root), "--json", "--cosigned", str(folder)]
    result = CliRunner().invoke(app, [*words, "--trust", str(keys)])
    looks = [(s["server"], s["witness"], s["witnessed_hops"]) for s in json.loads(result.stdout)["servers"]]
    assert [look for look in looks if look[1]] == [(BROKER, witness.name, 7)]
    assert isinstance(CliRunner().invoke(app, words).exception, UsageError), "nothing is believed without keys"


def test_names_of_peers_cannot_drive_the_terminal(hostile_tables: Tables) -> None:
    result = CliRunner().invoke(app, [str(hostile_tables.root), "--json"])
    assert "\u202e" not in result.stdout
    assert "\\u202e" in result.stdout


def test_a_directory_without_tables_is_an_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [str(tmp_path)])
    assert isinstance(result.exception, PipelineError)


def test_the_report_needs_no_spark() -> None:
    script = (
        "import sys; import dovetail.cli.report, dovetail.report.page, dovetail.report.survey;"
        "sys.exit('pyspark' in sys.modules or 'vl_convert' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.exhaustive
def test_a_page_that_cannot_be_written_is_named_and_leaves_nothing(tables: Tables, tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    ran = CliRunner().invoke(app, [str(tables.root), "-o", str(tmp_path / "report.html")])
    assert isinstance(ran.exception, DovetailError)
    assert f"{tmp_path / 'report.html'} cannot be written: " in str(ran.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
