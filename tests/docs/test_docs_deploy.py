"""What lies in deploy/ fits the project: paths, options, times; and systemd itself understands the unit."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dovetail.cli.main import main
from dovetail.site.config.sections import SupervisorSection
from dovetail.site.servers import Wave

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy" / "dovetail.service"


def settings(unit: str) -> dict[str, str]:
    return dict(re.findall(r"^(\w+)=(.*)$", unit, re.MULTILINE))


def test_the_unit_waits_longer_than_all_waves_may_take():
    longest_s = len(Wave) * SupervisorSection().grace_s
    assert int(settings(UNIT.read_text())["TimeoutStopSec"]) > longest_s


@pytest.mark.parametrize("name", ["ExecStartPre", "ExecStart"])
def test_the_commands_of_the_unit_exist(name, tmp_path, capsys):
    program, *words = settings(UNIT.read_text())[name].split()
    assert program == "/opt/dovetail/.venv/bin/dovetail"
    (tmp_path / "site.toml").write_text('[[swarm]]\nname = "s"\n')
    words = [word.replace("/etc/dovetail", str(tmp_path)) for word in words]
    assert main(words + (["--list"] if words[0] == "up" else [])) == 0, capsys.readouterr().err


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
def test_systemd_understands_the_unit(tmp_path):
    unit = tmp_path / "dovetail.service"
    unit.write_text(UNIT.read_text().replace("/opt/dovetail/.venv/bin/dovetail", "/bin/true"))
    ran = subprocess.run(["systemd-analyze", "verify", unit], text=True, capture_output=True, check=False)
    assert [line for line in ran.stderr.splitlines() if "dovetail.service" in line] == []


def test_the_container_file_copies_what_there_is_and_the_context_holds_it():
    text = (ROOT / "deploy" / "Containerfile").read_text()
    copied = {word for line in re.findall(r"^COPY (.+)$", text, re.MULTILINE) for word in line.split()[:-1]}
    assert {"pyproject.toml", "requirements", "tools", "src"} <= copied
    assert all((ROOT / name).exists() for name in copied)
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert kept == copied
    assert "python tools/setup.py" in text
