"""The programs of the documentation run exactly as printed."""

import ast
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from report.sample_tables import SCHEMAS, small_world

pytestmark = [pytest.mark.system, pytest.mark.exhaustive]
EXAMPLES = Path(__file__).parents[2] / "examples"
SOURCE = str(Path(__file__).parents[2] / "src")


def run(program: str, *arguments: object, cwd: Path) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / program), *map(str, arguments)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout.splitlines()


def test_send_receive_prove(tmp_path):
    claims = run("send_and_prove.py", cwd=tmp_path)
    assert re.fullmatch(r"the message is [0-9a-f]{64}; its \d+ bytes are here", claims[0])
    assert claims[1].startswith('pcp://broker/server accepted the message from "pcp://ann/agent" at ')
    assert claims[2].startswith(
        'pcp://broker/server handed the message over to the connection of "pcp://ben/agent" at '
    )
    assert (tmp_path / "door.receipt").stat().st_size < 10_000
    assert [path.name for path in tmp_path.iterdir()] == ["door.receipt"]


def test_ask_answer_notice_a_loss(tmp_path):
    answer, loss = run("ask_and_notice.py", cwd=tmp_path)
    assert answer == "{'free_gb': 7}"
    assert re.fullmatch("nobody_there [0-9a-f]{64}", loss)


def test_what_is_wrong_and_why(tmp_path, monkeypatch):
    world = small_world()
    world.rows.setdefault("quarantine", [])
    monkeypatch.setitem(SCHEMAS, "quarantine", pa.schema([("message", pa.binary())]))
    world.write(tmp_path / "tables")
    lines = run("what_is_wrong.py", tmp_path / "tables", cwd=tmp_path)
    assert re.fullmatch(r"severity +check *", lines[0])
    assert any("delivery.lost" in line for line in lines)
    assert any(re.fullmatch(r"(pcp|won|swarm) message (wm:/)?\w+", line) for line in lines)


def executed(source: str, names: dict[str, object]) -> str:
    """What a notebook shows below a cell: what is printed, and the value of a last expression."""
    module = ast.parse(source)
    last = module.body.pop() if isinstance(module.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(module, "cell", "exec"), names)
        value = None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    return printed.getvalue() + ("" if value is None else repr(value))


def masked(text: str) -> str:
    """Without what differs each time: addresses, times and numbers."""
    return re.sub(r"\d+", "#", re.sub(r"[0-9a-f]{16,}", "#", text))


@pytest.mark.parametrize("notebook", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_every_cell_of_a_notebook_shows_what_is_kept_below_it(notebook, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    names: dict[str, object] = {}
    threads = threading.enumerate()
    for number, cell in enumerate(cells, 1):
        kept = "".join("".join(each.get("text") or each["data"]["text/plain"]) for each in cell["outputs"])
        assert masked(executed("".join(cell["source"]), names)) == masked(kept)
        assert cell["execution_count"] == number
    assert threading.enumerate() == threads
