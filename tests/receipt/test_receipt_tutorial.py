"""The tutorial runs as written, and prints what it says."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
from pathlib import Path

import pytest

from docs.shown import assert_printed, shown
from dovetail.cli.main import Noun, load_noun, main, report
from receipt import receipt_samples as samples

PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "prove-it.md"
_COMMAND = re.compile(r"^    (?:ORDER=\$\()?(dovetail|python|mkdir|cp|sed) ([^)\n]+)\)?$", re.MULTILINE)
_SCRIPT = re.compile(r"```python\n(.*?)```", re.DOTALL)


def run_receipt(arguments: list[str]) -> int:
    try:
        return load_noun(Noun("receipt", "")).main(arguments, standalone_mode=False) or 0
    except Exception as error:
        return report(error)


def run(program: str, arguments: list[str]) -> int:
    match program:
        case "python":
            runpy.run_path(arguments[0])
        case "mkdir":
            Path(arguments[0]).mkdir()
        case "cp":
            for name in arguments[:-1]:
                shutil.copy(name, arguments[-1])
        case "sed":
            _, old, new, _ = arguments[0].split("/")
            Path(arguments[3]).write_text(Path(arguments[1]).read_text().replace(old, new))
        case _ if arguments[0] == "receipt":
            return run_receipt(arguments[1:])
        case _:
            return main(arguments)
    return 0


@pytest.mark.exhaustive
def test_the_tutorial_runs_as_written(tmp_path, monkeypatch, capsys):
    text = PAGE.read_text()
    monkeypatch.chdir(tmp_path)
    (script,) = _SCRIPT.findall(text)
    Path("deliver.py").write_text(script)
    commands = _COMMAND.findall(text)
    assert len(commands) == 16
    printed = order = ""
    for program, line in commands:
        words = shlex.split(line.replace("$ORDER", order), comments=True)
        assert run(program, words) == (3 if "exits 3" in line else 0), line
        captured = capsys.readouterr()
        order = order or captured.out.strip()
        printed += captured.out + captured.err
    assert_printed(shown(PAGE), printed)
    assert 1500 < Path("receipt.json").stat().st_size < 3500


def test_the_library_example_runs_as_written(tmp_path, monkeypatch, capsys, receipts):
    text = (PAGE.parents[1] / "explain" / "receipts.md").read_text()
    monkeypatch.chdir(tmp_path)
    Path("receipt.json").write_bytes(receipts["won"])
    Path("trusted.keys").write_text("".join(f"{verifier.text()}\n" for verifier in samples.verifiers()))
    (script,) = _SCRIPT.findall(text)
    Path("example.py").write_text(script)
    runpy.run_path("example.py")
    assert "commits to this" in capsys.readouterr().out
    Path("receipt.json").write_bytes(b"{}")
    runpy.run_path("example.py")
    assert "not valid: form: " in capsys.readouterr().out
