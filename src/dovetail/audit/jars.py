"""Delta Lake's Java archives: which they are, where they are stored, and how they are fetched.

Set-up fetches them once into the virtual environment; an audit run fetches nothing. Imports only the standard library,
because set-up loads this file before anything is installed. After an installation with pip,
`python -m dovetail.audit.jars` does the same.
"""

from __future__ import annotations

import hashlib
import os
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path

LOCK = Path(__file__).with_name("jars.lock")
S3_LOCK = Path(__file__).with_name("jars-s3.lock")
REPOSITORY = "DOVETAIL_MAVEN"
"""Environment variable: the base URL of a Maven repository to use instead of Maven Central."""

_CENTRAL = "https://repo1.maven.org/maven2"
_TIMEOUT_S = 60
_MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class Jar:
    """One archive."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def name(self) -> str:
        """The name of the file."""
        return f"{self.artifact}-{self.version}.jar"

    @property
    def path(self) -> str:
        """Its path in every Maven repository."""
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.name}"


def read_lock(lock: Path = LOCK) -> list[Jar]:
    """The archives listed in a lock file: coordinates and hash, one per line."""
    jars = []
    # by this module's loader, since both may be in a zip file
    for line in globals()["__loader__"].get_data(str(lock)).decode().splitlines():
        if line.strip() and not line.startswith("#"):
            coordinates, sha256 = line.split()
            group, artifact, version = coordinates.split(":")
            jars.append(Jar(group, artifact, version, sha256))
    return jars


def directory(environment: Path | None = None) -> Path:
    """Where the archives of a virtual environment are stored."""
    return (Path(sys.prefix) if environment is None else environment) / "jars"


def missing(lock: Path = LOCK, environment: Path | None = None) -> list[Jar]:
    """The archives that are not installed yet."""
    return [jar for jar in read_lock(lock) if not (directory(environment) / jar.name).is_file()]


def paths(environment: Path | None = None, *, with_s3: bool = False) -> list[Path]:
    """The archives for Spark: Delta Lake's, and those for object stores."""
    locks = (LOCK, S3_LOCK) if with_s3 else (LOCK,)
    return [directory(environment) / jar.name for lock in locks for jar in read_lock(lock)]


def fetch(jar: Jar, environment: Path | None = None) -> None:
    """Fetch one archive; raises ValueError if its hash is wrong, OSError if it is unavailable."""
    target = directory(environment) / jar.name
    url = f"{os.environ.get(REPOSITORY, _CENTRAL).rstrip('/')}/{jar.path}"
    if not url.startswith(("https:", "http:", "file:")):
        raise ValueError(f"{REPOSITORY} is not the URL of a repository: {url[:200]}")
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - its scheme is checked above
        data = answer.read(_MAX_BYTES + 1)
    if hashlib.sha256(data).hexdigest() != jar.sha256:
        raise ValueError(f"{url} does not match {jar.group}:{jar.artifact}:{jar.version} in the lock file")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(".new")
    temporary.write_bytes(data)
    temporary.replace(target)


def main(argv: list[str] | None = None) -> int:
    """Fetch missing archives into this environment; `--s3` adds those for object stores."""
    arguments = sys.argv[1:] if argv is None else argv
    for lock in (LOCK, S3_LOCK) if "--s3" in arguments else (LOCK,):
        for jar in missing(lock):
            try:
                fetch(jar)
            except (OSError, ValueError) as error:
                sys.stderr.write(f"{jar.name}: {error}\n")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
