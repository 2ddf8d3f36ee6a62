import importlib.util
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIND_PYTHON = ROOT / "tools" / "find-python.sh"


@pytest.fixture
def machine(tmp_path):
    """A PATH with only `sh` and the given Pythons."""
    directory = tmp_path / "bin"
    directory.mkdir()

    def put(name: str, *, version: str, has_ensurepip: bool = True) -> None:
        # Answers the script's queries as a Python of that version would.
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


def pins_of(name: str) -> dict[str, set[str]]:
    """Packages with their versions; one for each if versions support different Pythons."""
    pins: dict[str, set[str]] = {}
    for line in (ROOT / "requirements" / f"{name}.lock").read_text().splitlines():
        if "==" in line:
            package, version = line.split(" ")[0].split("==")
            pins.setdefault(package, set()).add(version)
    return pins


@pytest.mark.parametrize("other", ["build", "site"])
def test_the_locks_agree_with_each_other(other):
    ours, theirs = pins_of("all"), pins_of(other)
    shared = ours.keys() & theirs.keys()
    assert shared
    assert {package: theirs[package] for package in shared} == {package: ours[package] for package in shared}


@pytest.fixture(scope="module")
def setup():
    spec = importlib.util.spec_from_file_location("tools_setup", ROOT / "tools" / "setup.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def environment(setup, tmp_path, monkeypatch):
    """An environment whose record says that everything is done; its Python prints what pip would be asked for."""
    monkeypatch.delenv("PYTHON", raising=False)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/asked\n')
    python.chmod(0o755)
    record = {
        "python": platform.python_version(),
        "packages": setup.digest(setup.LOCKS / "build.lock", setup.LOCKS / "all.lock"),
        "project": setup.digest(ROOT / "pyproject.toml"),
        "java": {"key": setup.digest(setup.LOCKS / "java.lock"), "home": str(tmp_path)},
    }
    (tmp_path / "bin" / "java").write_text("")
    (tmp_path / "ready.json").write_text(json.dumps(record))

    def change(**changes: object):
        (tmp_path / "ready.json").write_text(json.dumps({**record, **changes}))
        return setup.Environment(tmp_path)

    return change


def asked(path: Path) -> list[str]:
    file = path / "asked"
    return file.read_text().splitlines() if file.exists() else []


def test_a_ready_environment_is_left_alone(environment, tmp_path):
    ready = environment()
    assert not ready.prepare_packages()
    assert not ready.prepare_java()
    assert asked(tmp_path) == []


def test_a_changed_lock_is_installed_with_hashes_and_remembered(environment, tmp_path, capsys):
    assert environment(packages="old").prepare_packages()
    build, everything, compilation = asked(tmp_path)
    assert "--require-hashes -r " in build
    assert {"--require-hashes", "--no-build-isolation", "--no-compile"} <= set(everything.split())
    assert everything.endswith(f"-r {ROOT / 'requirements' / 'all.lock'}")
    assert "-m compileall" in compilation
    assert not environment_again(tmp_path).prepare_packages()


def test_a_tool_gets_the_packages_of_its_own_lock_and_no_others(environment, tmp_path):
    lock = ROOT / "requirements" / "kit.lock"
    assert environment(packages="old").prepare_tool(lock)
    (command,) = asked(tmp_path)
    assert command.endswith(f"--require-hashes --no-deps -r {lock}")
    assert not environment_again(tmp_path).prepare_tool(lock)


def environment_again(path: Path):
    return sys.modules["tools_setup"].Environment(path)


def test_a_changed_project_is_installed_without_its_dependencies(environment, tmp_path):
    assert environment(project="old").prepare_packages()
    (command,) = asked(tmp_path)
    assert f"--no-deps --no-build-isolation --editable {ROOT}" in command


def test_pip_that_fails_is_shown_and_not_remembered(environment, tmp_path, capsys):
    stale = environment(project="old")
    (tmp_path / "bin" / "python").write_text("#!/bin/sh\necho no such thing\nexit 1\n")
    with pytest.raises(SystemExit):
        stale.prepare_packages()
    assert "  no such thing\nsetup: pip failed; everything it said is in " in capsys.readouterr().err
    assert json.loads((tmp_path / "ready.json").read_text())["project"] == "old"


def test_another_python_makes_it_anew_only_if_asked_for(environment, monkeypatch):
    assert environment(python="3.0.0")._is_usable()
    monkeypatch.setenv("PYTHON", "python3")
    assert not environment(python="3.0.0")._is_usable()
    assert environment()._is_usable()


def test_an_environment_without_record_or_python_is_made_anew(environment, tmp_path):
    assert not environment(python=None)._is_usable()
    (tmp_path / "ready.json").write_text("[1")
    assert not environment_again(tmp_path)._is_usable()
    usable = environment()
    (tmp_path / "bin" / "python").unlink()
    assert not usable._is_usable()


def test_java_is_looked_for_again_when_it_is_gone_or_java_home_changed(environment, tmp_path, monkeypatch, capsys):
    home = tmp_path / "jdk"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\necho 'openjdk version \"21.0.1\"' >&2\n")
    (home / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert environment().prepare_java()
    assert f"Spark will use Java 21.0.1 in {home} (JAVA_HOME)" in capsys.readouterr().err
    assert not environment_again(tmp_path).prepare_java()


@pytest.fixture
def crate(setup, tmp_path, monkeypatch):
    """A project with a native part, and a fake cargo."""
    for name in ("Cargo.toml", "Cargo.lock", "src/lib.rs"):
        path = tmp_path / "project" / "native" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    monkeypatch.setattr(setup, "ROOT", tmp_path / "project")
    monkeypatch.setattr(setup, "NATIVE", tmp_path / "project" / "native")
    monkeypatch.setattr(setup.sys, "platform", "linux")

    def put_cargo(script: str) -> None:
        cargo = tmp_path / "tools" / "cargo"
        cargo.parent.mkdir(exist_ok=True)
        cargo.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/asked\n{script}\n')
        cargo.chmod(0o755)
        monkeypatch.setenv("PATH", f"{cargo.parent}:/usr/bin:/bin")

    monkeypatch.setenv("PATH", "/nowhere")
    return put_cargo


def test_without_cargo_nothing_is_built_and_nothing_said(environment, crate, tmp_path, capsys):
    assert not environment().prepare_native()
    assert (asked(tmp_path), capsys.readouterr().err) == ([], "")


def test_with_cargo_the_native_code_is_built_from_its_lock_and_put_into_the_environment(environment, crate, tmp_path):
    crate('mkdir -p "$5/release" && echo machine code >"$5/release/libdovetail_fast.so"')
    assert environment().prepare_native()
    assert asked(tmp_path) == [f"build --release --locked --target-dir {tmp_path}/project/build/native"]
    installed = tmp_path / "lib" / "python3.11" / "site-packages" / "dovetail_fast.abi3.so"
    assert installed.read_text() == "machine code\n"
    assert not environment_again(tmp_path).prepare_native()
    (tmp_path / "project" / "native" / "src" / "lib.rs").write_text("changed")
    assert environment_again(tmp_path).prepare_native()
    installed.unlink()
    assert environment_again(tmp_path).prepare_native()
    assert installed.exists()


def test_native_code_that_cannot_be_built_is_told_once_and_stops_nothing(environment, crate, tmp_path, capsys):
    crate("echo no network; exit 101")
    assert environment().prepare_native()
    assert "could not be built, going on in Python alone" in capsys.readouterr().err
    assert "no network" in (tmp_path / "setup.log").read_text()
    assert not environment_again(tmp_path).prepare_native()
