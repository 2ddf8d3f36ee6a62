from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dovetail.cli.report import app
from dovetail.errors import PipelineError
from dovetail.report.numbers import Numbers
from dovetail.report.tables import Tables


def test_it_writes_the_page_and_prints_the_summary(tables: Tables, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="the charts' library is not installed")
    out = tmp_path / "report.html"
    result = CliRunner().invoke(app, [str(tables.root), "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert "deliveries arrived" in result.stdout
    assert f"wrote {out}" in result.stderr
    assert out.read_text().lstrip().startswith("<!DOCTYPE html>")


def test_json_has_the_same_numbers(tables: Tables, numbers: Numbers) -> None:
    result = CliRunner().invoke(app, [str(tables.root), "--json"])
    found = json.loads(result.stdout)
    assert found["hops"] == numbers.hops
    assert sum(item["deliveries"] for item in found["outcomes"]) == numbers.deliveries
    assert set(found) == set(Numbers.__struct_fields__)


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
