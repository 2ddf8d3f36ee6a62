"""Our code as files for a Spark cluster, whose executors then need only Python with the packages that we depend on.

Spark puts a zip file, unlike a wheel, on the path of its Python workers. Native code is not in it: executors use it if
it is installed there, and otherwise Python, with the same results.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

from dovetail.keys.files import write_public

ARCHIVE = "dovetail.zip"
PROGRAMS = ("run.py", "compact.py")
"""The programs for spark-submit."""

_ROOT = Path(__file__).parents[1]
_TIME = (1980, 1, 1, 0, 0, 0)


def pack() -> bytes:
    """All modules and their data as a zip file; the same code gives the same bytes."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(_ROOT.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                name = zipfile.ZipInfo(file.relative_to(_ROOT.parent).as_posix(), _TIME)
                archive.writestr(name, file.read_bytes(), zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def write_package(directory: Path) -> list[Path]:
    """Write the archive, and the programs that spark-submit takes with it; replaces what is there."""
    directory.mkdir(parents=True, exist_ok=True)
    files = {ARCHIVE: pack(), **{name: (_ROOT / "audit" / name).read_bytes() for name in PROGRAMS}}
    for name, data in files.items():
        write_public(directory / name, data, force=True)
    return [directory / name for name in files]
