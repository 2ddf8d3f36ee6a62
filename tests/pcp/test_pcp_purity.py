"""The core is pure: no sockets, clocks, files, threads, randomness or await."""

import ast
from pathlib import Path

import pytest

import dovetail.pcp

FORBIDDEN = {"asyncio", "socket", "time", "random", "threading", "sqlite3", "os", "logging", "pathlib", "select"}
MODULES = sorted(Path(dovetail.pcp.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_core_module_is_pure_and_of_readable_size(path):
    source = path.read_text()
    imported: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        assert not isinstance(node, ast.Await | ast.AsyncFunctionDef)
        if isinstance(node, ast.Import):
            imported |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module.split(".")[0])
            assert not node.module.startswith(("dovetail.runtime", "dovetail.journal", "dovetail.cli"))
    assert not imported & FORBIDDEN
    assert len(source.splitlines()) <= 500
