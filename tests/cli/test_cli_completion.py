"""Completion: what the shells themselves offer after TAB, with the script that `dovetail completion` prints."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from cli.grid_site import commands
from dovetail.cli.completion import answer
from dovetail.cli.main import root

SOURCE = Path(__file__).parents[2] / "src"
SHELLS = {
    "bash": (["--norc", "--noprofile", "-i"], "source <(dovetail completion bash); PS1=rea''dy"),
    "zsh": (["-f", "-i"], "fpath=($PWD $fpath); autoload -U compinit; compinit -u -D; PS1=rea''dy"),
}
DEADLINE_S = 60
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|[\x07\r]")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dovetail) -> Path:
    """A directory with contexts, files, a program `dovetail`, and the script of zsh as its users keep it."""
    monkeypatch.setenv("DOVETAIL_CONFIG_DIR", str(tmp_path / "config"))
    for name in ("home", "harbour", "away"):
        assert dovetail("context", "save", name).code == 0
    program = tmp_path / "bin" / "dovetail"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nPYTHONPATH={SOURCE} exec {sys.executable} -m dovetail "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TERM", "dumb")
    (tmp_path / "partial.db").touch()
    (tmp_path / "with space.db").touch()
    (tmp_path / "_dovetail").write_text(dovetail("completion", "zsh").out)
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Terminal:
    """An interactive shell that is typed at."""

    def __init__(self, words: list[str]) -> None:
        self._pid, self._master = pty.fork()
        if not self._pid:
            os.execvp(words[0], words)

    def type(self, text: str, *awaited: str) -> str:
        """Type; returns what is on the screen once it shows all that is awaited."""
        os.write(self._master, text.encode())
        shown, until = "", time.monotonic() + DEADLINE_S
        while not all(each in ESCAPES.sub("", shown) for each in awaited):
            assert time.monotonic() < until, f"{awaited} not in {shown!r}"
            if select.select([self._master], [], [], 0.1)[0]:
                shown += os.read(self._master, 65536).decode(errors="replace")
        return ESCAPES.sub("", shown)

    def close(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._master)


@contextlib.contextmanager
def shell(name: str) -> Iterator[Terminal]:
    """The shell, with completion set up as the help of the command says."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    options, setup = SHELLS[name]
    terminal = Terminal([name, *options])
    try:
        terminal.type(f"{setup}\n", "ready")
        yield terminal
    finally:
        terminal.close()


ENDINGS = [
    ("dovetail rec", "receipt "),
    ("dovetail receipt sh", "show "),
    ("dovetail context use aw", "away "),
    ("dovetail pcp send --context ho", "home "),
    ("dovetail pcp send --context=ho", "--context=home "),
    ("dovetail audit run --fail-on w", "warning "),
    ("dovetail --log-level=w", "--log-level=warning "),
    ("dovetail receipt build --jou", "--journal "),
    ("dovetail journal verify part", "partial.db "),
    ("dovetail journal verify with", r"with\ space.db "),
    ("dovetail journal seal --lake=part", "--lake=partial.db "),
]


@pytest.mark.system
@pytest.mark.parametrize("name", SHELLS)
@pytest.mark.parametrize(("line", "end"), ENDINGS, ids=[line for line, _ in ENDINGS])
def test_tab_completes_a_word(place, name, line, end):
    with shell(name) as terminal:
        terminal.type(f"{line}\t", f"{line.rpartition(' ')[0]} {end}")


@pytest.mark.system
@pytest.mark.parametrize("name", SHELLS)
def test_tab_shows_all_candidates(place, name):
    with shell(name) as terminal:
        shown = terminal.type("dovetail context use h\t\t", "home", "harbour")
        assert "away" not in shown


@pytest.mark.system
@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish(place, dovetail):
    (place / "d.fish").write_text(dovetail("completion", "fish").out)

    def candidates(line: str) -> list[str]:
        ran = subprocess.run(
            ["fish", "--no-config", "-c", f"source d.fish; complete -C '{line}'"], capture_output=True, text=True
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        return [each.partition("\t")[0] for each in ran.stdout.splitlines()]

    for line, end in ENDINGS:
        assert end.replace("\\", "").removesuffix(" ") in candidates(line), line
    assert candidates("dovetail context use h") == ["harbour", "home"]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_line_that_no_command_could_have_is_no_error_of_the_shell(place, shell):
    with_script = subprocess.run(
        ["dovetail", 'dovetail nonsense "x '],
        env=os.environ | {"_DOVETAIL_COMPLETE": shell},
        capture_output=True,
        text=True,
    )
    assert (with_script.stdout, "Traceback" in with_script.stderr) == ("", False)


CHOICES = re.compile(r"[a-z0-9-]+(\|[a-z0-9-]+)+")


def test_every_value_that_the_help_lists_is_offered(dovetail):
    """Where the help has `--layer v1|v2|auto`, these are the values, and no other is taken."""
    command, seen = typer.main.get_group(root), 0
    for name, each in commands().items():
        for parameter in each.params:
            values = (parameter.metavar or "").split("|")
            if not CHOICES.fullmatch(parameter.metavar or "") or parameter.hidden:
                continue
            seen += 1
            option = f"{parameter.opts[-1]} " if parameter.param_type_name == "option" else ""
            assert sorted(answer(command, "bash", f"dovetail {name} {option}")) == sorted(values), (name, parameter)
    assert seen > 5
    for words in (("pcp", "decode", "--layer", "v9", "00"), ("swarm", "decode", "--layer", "uep1", "00")):
        ran = dovetail(*words)
        assert (ran.code, ran.err.count("\n"), words[3] in ran.err) == (2, 1, True)
