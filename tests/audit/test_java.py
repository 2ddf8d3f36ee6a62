import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.audit import java as java_module
from dovetail.audit.java import Java, Rejected, find_java, local_home, probe_java, write_launcher


def make_java(home: Path, version: str, *, has_vector: bool = True, code: int = 0) -> Path:
    """A Java home whose `java` answers as a real one of that version would."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    refuse = "" if has_vector else 'case "$*" in *jdk.incubator.vector*) echo "module not found" >&2; exit 1;; esac\n'
    executable.write_text(
        f"#!/bin/sh\n{refuse}[ {code} = 0 ] || exit {code}\n"
        f"echo 'openjdk version \"{version}\" 2025-04-15' >&2\n"
        f"echo '    java.home = {home}' >&2\n"
    )
    executable.chmod(0o755)
    return home


def find(tmp_path: Path, *, java_home: Path | None = None, path: str = "/nowhere", places: tuple[Path, ...] = ()):
    environ = {"PATH": path, "HOME": str(tmp_path)}
    if java_home is not None:
        environ["JAVA_HOME"] = str(java_home)
    return find_java(environ, local=tmp_path / "venv" / "java", places=[str(place) for place in places])


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", 17), ("21", 21), ("25.0.2", 25), ("26-ea", 26), ("17.0.9+9-LTS", 17)]
)
def test_new_versions_will_do(tmp_path, version, major):
    found = probe_java(make_java(tmp_path / "jdk", version), "test")
    assert isinstance(found, Java)
    assert (found.version, found.version_text, found.source) == (major, version, "test")
    assert found.environment() == {"JAVA_HOME": str(tmp_path / "jdk")}


@pytest.mark.parametrize("version", ["1.8.0_412", "11.0.2", "16"])
def test_old_versions_will_not(tmp_path, version):
    found = probe_java(make_java(tmp_path / "jdk", version), "test")
    assert isinstance(found, Rejected)
    assert found.why == f"is Java {version}, needs 17 or newer"


def test_a_java_without_the_module_will_not_do(tmp_path):
    found = probe_java(make_java(tmp_path / "jdk", "25", has_vector=False), "test")
    assert isinstance(found, Rejected)
    assert "jdk.incubator.vector" in found.why


@pytest.mark.parametrize(
    ("prepare", "why"),
    [
        (lambda home: home.mkdir(), "has no bin/java"),
        (lambda home: make_java(home, "17", code=3), "fails on `java -version`"),
        (lambda home: make_java(home, 'x"'), "does not report its version"),
        (lambda home: (make_java(home, "17") / "bin" / "java").chmod(0o644), "cannot be started"),
    ],
)
def test_a_broken_java_is_told_why(tmp_path, prepare, why):
    prepare(tmp_path / "jdk")
    found = probe_java(tmp_path / "jdk", "test")
    assert isinstance(found, Rejected)
    assert found.why.startswith(why)


def test_the_order_is_java_home_path_places_local(tmp_path):
    home, on_path, place, local = (make_java(tmp_path / name, "17") for name in ("home", "path", "place", "venv/java"))
    path = str(on_path / "bin")
    assert find(tmp_path, java_home=home, path=path, places=(place,))[0].source == "JAVA_HOME"
    assert find(tmp_path, path=path, places=(place,))[0].source == "PATH"
    assert find(tmp_path, places=(place,))[0].source == "the usual places"
    assert find(tmp_path)[0].source == "this virtual environment"
    assert find(tmp_path)[0].home == local


def test_a_bad_java_home_is_passed_over_and_reported(tmp_path):
    old = make_java(tmp_path / "old", "11.0.2")
    good = make_java(tmp_path / "good", "21")
    found, rejected = find(tmp_path, java_home=old, path=str(good / "bin"))
    assert found.home == good
    assert [(each.home, each.source, each.why) for each in rejected] == [
        (old, "JAVA_HOME", "is Java 11.0.2, needs 17 or newer")
    ]
    found, rejected = find(tmp_path, java_home=tmp_path / "gone", path=str(good / "bin"))
    assert found.home == good
    assert rejected[0].why == "has no bin/java"


def test_the_highest_of_the_usual_places_is_tried_first(tmp_path):
    for name in ("java-9-openjdk", "java-21-openjdk", "java-17-openjdk"):
        make_java(tmp_path / "jvm" / name, name.split("-")[1])
    found, rejected = find(tmp_path, places=(tmp_path / "jvm" / "*",))
    assert found.version == 21
    assert rejected == []


def test_one_home_under_several_names_is_tried_once(tmp_path):
    home = make_java(tmp_path / "jvm" / "old", "11")
    (tmp_path / "jvm" / "alias").symlink_to(home)
    found, rejected = find(tmp_path, java_home=home, path=str(home / "bin"), places=(tmp_path / "jvm" / "*",))
    assert found is None
    assert len(rejected) == 1


def test_a_script_of_a_version_manager_is_asked_for_the_home(tmp_path):
    home = make_java(tmp_path / "real", "21")
    shims = tmp_path / "shims"
    shims.mkdir()
    (shims / "java").write_text(f'#!/bin/sh\nexec {home}/bin/java "$@"\n')
    (shims / "java").chmod(0o755)
    found, _ = find(tmp_path, path=str(shims))
    assert found.home == home


def test_no_java_at_all(tmp_path):
    assert find(tmp_path) == (None, [])


def test_the_local_home_is_inside_the_environment():
    assert local_home("/x/.venv") == Path("/x/.venv/java")


@pytest.fixture
def launch(tmp_path):
    """The arguments that reach the real Java through the launcher."""
    runtime = tmp_path / "it's a runtime"
    (runtime / "bin").mkdir(parents=True)
    (runtime / "bin" / "java").write_text('#!/bin/sh\nfor each in "$@"; do printf \'%s\\0\' "$each"; done\n')
    (runtime / "bin" / "java").chmod(0o755)
    launcher = write_launcher(tmp_path / "home", runtime)
    assert launcher == tmp_path / "home" / "bin" / "java"

    def run(*arguments: str) -> list[str]:
        ran = subprocess.run([launcher, *arguments], capture_output=True, text=True, check=True, env={})
        return ran.stdout.split("\0")[:-1]

    return run


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        (["--add-modules=jdk.incubator.vector", "-version"], ["-version"]),
        (["--add-modules", "jdk.incubator.vector", "-version"], ["-version"]),
        (["--add-modules=a,jdk.incubator.vector,b", "M"], ["--add-modules=a,b", "M"]),
        (["--add-modules", "jdk.incubator.vector,b", "M"], ["--add-modules=b", "M"]),
        (["--add-modules=jdk.incubator.vectors", "M"], ["--add-modules=jdk.incubator.vectors", "M"]),
        (["-cp", "--add-modules=jdk.incubator.vector", "M"], ["-cp", "--add-modules=jdk.incubator.vector", "M"]),
        (["M", "--add-modules", "jdk.incubator.vector"], ["M", "--add-modules", "jdk.incubator.vector"]),
        (["-jar", "x", "--add-modules=jdk.incubator.vector"], ["-jar", "x", "--add-modules=jdk.incubator.vector"]),
        (["-Dx=a b\nc*", "", "'"], ["-Dx=a b\nc*", "", "'"]),
        (["--add-modules"], ["--add-modules"]),
        ([], []),
    ],
)
def test_the_launcher_drops_the_module_and_nothing_else(launch, given, passed):
    assert launch(*given) == passed


def test_the_launcher_makes_a_java_without_the_module_good(tmp_path):
    runtime = make_java(tmp_path / "runtime", "25.0.2", has_vector=False)
    write_launcher(tmp_path / "venv" / "java", runtime)
    found, rejected = find(tmp_path, java_home=runtime)
    assert found.home == tmp_path / "venv" / "java"
    assert found.version == 25
    assert len(rejected) == 1


def test_set_up_can_load_this_module_without_any_dependency():
    script = "import runpy, sys; runpy.run_path(sys.argv[1]); print('msgspec' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script, java_module.__file__], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "False\n"
