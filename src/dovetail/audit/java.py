"""Finds a Java that Spark can run on.

Spark 4 needs Java 17 or newer, and always starts it with `--add-modules jdk.incubator.vector`. So a candidate is tried
with exactly that flag: one start of the JVM shows its version and whether Spark will be able to start it. The locations
are tried in this order, and the first suitable one is used:

    JAVA_HOME, `java` on the PATH, the usual system locations, the one that set-up put into the virtual environment

The last is a runtime from the package index that lacks that module; `write_launcher` wraps it in a small shell script
that drops the module from the command line. Spark uses the module only to speed up a few linear algebra routines, which
nothing here calls.

This module imports only the standard library: set-up loads it before anything is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

MIN_VERSION = 17
VECTOR_MODULE = "jdk.incubator.vector"
_PROBE_TIMEOUT_S = 30
_MAX_CANDIDATES = 64
_VERSION = re.compile(r'version "(?P<old>1\.)?(?P<major>\d+)(?P<rest>[^"]*)"')
_HOME = re.compile(r"^\s*java\.home = (.+)$", re.MULTILINE)
_USUAL_PLACES = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "/usr/local/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
)
_USUAL_PLACES_AT_HOME = (".sdkman/candidates/java/*", ".jdks/*", ".local/share/mise/installs/java/*")
_MAC_JAVA_HOME = "/usr/libexec/java_home"


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java that Spark can run on."""

    home: Path
    version: int
    version_text: str
    source: str
    """Where it was found, as readable text."""

    @property
    def executable(self) -> Path:
        """The program itself."""
        return self.home / "bin" / "java"

    def environment(self) -> dict[str, str]:
        """The environment for a process that starts Spark; only JAVA_HOME matters there."""
        return {"JAVA_HOME": str(self.home)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """An unsuitable Java, with the reason."""

    home: Path
    source: str
    why: str


def find_java(
    environ: Mapping[str, str] | None = None,
    *,
    local: Path | None = None,
    places: Iterable[str] | None = None,
) -> tuple[Java | None, list[Rejected]]:
    """The first suitable Java, and the unsuitable ones before it.

    `local` is the home that set-up may have created, by default inside this virtual environment; `places` are patterns
    that replace the usual locations.
    """
    environ = os.environ if environ is None else environ
    rejected: list[Rejected] = []
    seen: set[Path] = set()
    for home, source in _candidates(environ, local or local_home(), places):
        real = home.resolve()
        if real in seen or len(seen) >= _MAX_CANDIDATES:
            continue
        seen.add(real)
        found = probe_java(home, source)
        if isinstance(found, Java):
            return found, rejected
        rejected.append(found)
    return None, rejected


def local_home(prefix: str | Path = sys.prefix) -> Path:
    """Where set-up puts its own Java inside a virtual environment."""
    return Path(prefix) / "java"


def probe_java(home: Path, source: str) -> Java | Rejected:
    """Start the Java in `home` as Spark would, and say whether it is suitable and why not."""
    executable = home / "bin" / "java"
    if not executable.is_file():
        return Rejected(home=home, source=source, why="has no bin/java")
    try:
        text = _start(executable, "--add-modules", VECTOR_MODULE)
        if text is None:
            text = _start(executable)
            why = f"lacks the module {VECTOR_MODULE} that Spark requires"
        else:
            why = ""
    except (OSError, subprocess.TimeoutExpired) as error:
        return Rejected(home=home, source=source, why=f"cannot be started: {error}")
    if text is None:
        return Rejected(home=home, source=source, why="fails on `java -version`")
    match = _VERSION.search(text)
    if match is None:
        return Rejected(home=home, source=source, why="does not report its version")
    version = int(match["major"])
    version_text = (match["old"] or "") + match["major"] + match["rest"]
    if version < MIN_VERSION:
        return Rejected(home=home, source=source, why=f"is Java {version_text}, needs {MIN_VERSION} or newer")
    if why:
        return Rejected(home=home, source=source, why=why)
    return Java(home=home, version=version, version_text=version_text, source=source)


def write_launcher(home: Path, runtime: Path) -> Path:
    """Make `home` a Java home whose `bin/java` starts the one in `runtime` without the vector module."""
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    quoted = str(runtime / "bin" / "java").replace("'", "'\\''")
    temporary = launcher.with_name("java.new")
    temporary.write_text(_LAUNCHER.replace("@JAVA@", f"'{quoted}'").replace("@MODULE@", VECTOR_MODULE))
    temporary.chmod(stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
    temporary.replace(launcher)
    return launcher


def _candidates(environ: Mapping[str, str], local: Path, places: Iterable[str] | None) -> Iterator[tuple[Path, str]]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"]), "JAVA_HOME"
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path and not _is_mac_placeholder(on_path):
        yield _home_of(Path(on_path)), "PATH"
    for home in _usual_homes(environ, places):
        yield home, "the usual places"
    if local.exists():
        yield local, "this virtual environment"


def _usual_homes(environ: Mapping[str, str], places: Iterable[str] | None) -> Iterator[Path]:
    if places is None:
        mac = _mac_java_home()
        if mac is not None:
            yield mac
        user = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
        places = [*_USUAL_PLACES, *(str(user / place) for place in _USUAL_PLACES_AT_HOME)]
    for place in places:
        # Newest name first: of several, the higher version is the better guess.
        for home in sorted(Path("/").glob(place.lstrip("/")), key=_digits, reverse=True):
            if home.is_dir():
                yield home


def _digits(path: Path) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", path.name)]


def _home_of(executable: Path) -> Path:
    """The home of a `java` on the PATH; version managers install wrapper scripts, which must be run to find it."""
    real = executable.resolve()
    if real.parent.name == "bin":
        return real.parent.parent
    try:
        settings = _start(executable, "-XshowSettings:properties") or ""
    except (OSError, subprocess.TimeoutExpired):
        settings = ""
    match = _HOME.search(settings)
    return Path(match[1]) if match else real.parent.parent


def _is_mac_placeholder(path: str) -> bool:
    """True for macOS's `/usr/bin/java`, which only opens a window saying that there is no Java."""
    return sys.platform == "darwin" and path == "/usr/bin/java"


def _mac_java_home() -> Path | None:
    if not Path(_MAC_JAVA_HOME).exists():
        return None
    try:
        answer = subprocess.run(  # noqa: S603
            [_MAC_JAVA_HOME, "-v", f"{MIN_VERSION}+"],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return Path(answer.stdout.strip()) if answer.returncode == 0 and answer.stdout.strip() else None


def _start(executable: Path, *flags: str) -> str | None:
    """The output of `java FLAGS -version`, or None if it fails."""
    answer = subprocess.run(  # noqa: S603
        [str(executable), *flags, "-version"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_PROBE_TIMEOUT_S,
        check=False,
    )
    return answer.stderr + answer.stdout if answer.returncode == 0 else None


# POSIX sh has no arrays: each argument is taken from the front of "$@" and, if kept, appended at its end, once per
# argument. Only arguments before the main class are Java's own.
_LAUNCHER = """\
#!/bin/sh
# Starts Java without the module @MODULE@, which this runtime lacks and Spark asks for.
without_module() {
    modules=
    IFS=,
    for module in $1; do
        [ "$module" = '@MODULE@' ] || modules="${modules:+$modules,}$module"
    done
    unset IFS
}

left=$#
own=yes
while [ "$left" -gt 0 ]; do
    argument=$1
    shift
    left=$((left - 1))
    if [ "$own" = yes ]; then
        case $argument in
            --add-modules=*)
                without_module "${argument#--add-modules=}"
                [ -n "$modules" ] || continue
                argument="--add-modules=$modules"
                ;;
            --add-modules)
                [ "$left" -gt 0 ] || { set -- "$@" "$argument"; continue; }
                without_module "$1"
                shift
                left=$((left - 1))
                [ -n "$modules" ] || continue
                argument="--add-modules=$modules"
                ;;
            -cp | -classpath | --class-path | -p | --module-path | --upgrade-module-path | --limit-modules | \\
                --add-reads | --add-exports | --add-opens | --patch-module | --source | --enable-native-access)
                if [ "$left" -gt 0 ]; then
                    set -- "$@" "$argument"
                    argument=$1
                    shift
                    left=$((left - 1))
                fi
                ;;
            -jar | -m | --module | [!-@]*) own=no ;;
        esac
    fi
    set -- "$@" "$argument"
done
exec @JAVA@ "$@"
"""
