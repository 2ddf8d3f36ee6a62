import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIND_PYTHON = ROOT / "tools" / "find-python.sh"


@pytest.fixture
def machine(tmp_path):
    """A PATH with only `sh` and the Pythons that are put there."""
    directory = tmp_path / "bin"
    directory.mkdir()

    def put(name: str, *, version: str, has_ensurepip: bool = True) -> None:
        # Answers the script's questions as a Python of that version would.
        major, minor = version.split(".")
        (directory / name).write_text(
            "#!/bin/sh\n"
            f'case "$2" in *print*) echo {directory / name}; exit 0;; '
            f"*ensurepip*) [ {int(has_ensurepip)} = 1 ] || exit 1;; esac\n"
            f"[ {major} -gt 3 ] || [ {minor} -ge 11 ]\n"
        )
        (directory / name).chmod(0o755)

    def find(**environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/sh", FIND_PYTHON],
            env={"PATH": str(directory), **environ},
            capture_output=True,
            text=True,
            check=False,
        )

    return directory, put, find


def test_python3_is_taken_where_it_suits(machine):
    directory, put, find = machine
    put("python3", version="3.12")
    put("python3.13", version="3.13")
    assert find().stdout == f"{directory}/python3\n"


def test_an_old_python3_is_passed_over(machine):
    directory, put, find = machine
    put("python3", version="3.9")
    put("python3.13", version="3.13")
    assert find().stdout == f"{directory}/python3.13\n"


def test_a_python_without_ensurepip_is_passed_over(machine):
    directory, put, find = machine
    put("python3", version="3.11", has_ensurepip=False)
    put("python3.11", version="3.11")
    assert find().stdout == f"{directory}/python3.11\n"


def test_only_one_without_ensurepip_is_a_clear_line(machine):
    _, put, find = machine
    put("python3", version="3.11", has_ensurepip=False)
    ran = find()
    assert ran.returncode == 1
    assert "lacks venv or ensurepip; on Debian and Ubuntu: apt install python3-venv" in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_no_python_is_a_clear_line(machine):
    _, put, find = machine
    put("python3", version="3.10")
    ran = find()
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("setup: Python 3.11 or newer is needed and none was found;")
    assert ran.stderr.count("\n") == 1


def test_the_variable_is_the_only_candidate(machine):
    directory, put, find = machine
    put("python3", version="3.12")
    put("mine", version="3.10")
    ran = find(PYTHON=str(directory / "mine"))
    assert ran.returncode == 1
    assert f"PYTHON={directory / 'mine'}" in ran.stderr


def test_this_python_suits():
    ran = subprocess.run(
        ["/bin/sh", FIND_PYTHON],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(ran.stdout.strip()).exists()


def test_locks_pin_and_hash_everything_and_name_no_place():
    for lock in (ROOT / "requirements").glob("*.lock"):
        text = lock.read_text()
        entries = text.replace("\\\n", " ").splitlines()
        assert entries
        for entry in entries:
            assert "==" in entry, entry
            assert "--hash=sha256:" in entry, entry
        assert "://" not in text
        assert "--index" not in text
        assert "--find-links" not in text


def test_the_locks_agree_with_each_other():
    pins: dict[str, set[str]] = {}
    for name in ("build", "all"):
        for line in (ROOT / "requirements" / f"{name}.lock").read_text().splitlines():
            if "==" in line and "numpy" not in line:
                package, version = line.split(" ")[0].split("==")
                pins.setdefault(package, set()).add(version)
    assert {package: found for package, found in pins.items() if len(found) > 1} == {}
