"""The structure of the code: who may import whom, what cores may not touch, and that the pages describe it."""

import ast
import importlib.util
import re
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PURE_IMPORTS = {
    *("__future__", "base64", "binascii", "bisect", "collections", "contextlib", "dataclasses", "datetime", "enum"),
    *("functools", "hashlib", "heapq", "io", "ipaddress", "itertools", "math", "operator", "re", "struct", "types"),
    *("typing", "uuid", "_typeshed", "cryptography", "msgspec", "pyoxigraph", "dovetail"),
}
"""All that a core may import: no clocks, files, sockets, threads, processes or randomness."""
PURE_EXCEPTIONS = {"dovetail.swarm.pow_llvm": {"ctypes", "llvmlite"}}
IMPURE_NAMES = {"open", "input", "print", "exec", "eval", "import_module", "__import__"}
IMPURE_ATTRIBUTES = {"now", "utcnow", "today", "uuid1", "uuid4", "generate", "Store"}
"""Impure calls of modules that a core may import."""

GENERAL = ("keys", "tlog", "journal", "lake", "receipt", "otel", "audit", "report", "dashboard")
"""Packages that know fabrics only through the registry; the audit has one module for each in `audit.fabrics`."""
FABRIC_NAME = re.compile(r"(?:pcp|won|wm)(?::/.*)?|swarm://.*", re.DOTALL)
"""A string that is the name of a fabric or a URI of one. `swarm` alone is also a column of the audit's tables."""
PURE = ("model", "tlog", "pcp", "won", "swarm")
MAX_LINES = 500


def load_tool():
    spec = importlib.util.spec_from_file_location("tools_import_graph", ROOT / "tools" / "import_graph.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


graph = load_tool()
FABRICS = ("pcp", "won", "swarm")
MODULES = graph.modules()
STATIC = [
    file for file in (ROOT / "src" / "dovetail").rglob("static/*") if file.suffix in (".js", ".css", ".html", ".svg")
]
LAYER = {name: number for number, layer in enumerate(graph.LAYERS) for name in layer}


module_graph = cache(graph.module_graph)


@cache
def imports() -> dict[str, set[str]]:
    """What every module imports; found by the first test that asks, since all workers of a test run load this file."""
    return {name: set(graph.imports_of(name, path, MODULES)) for name, path in MODULES.items()}


def test_every_package_has_its_layer():
    assert {graph.package_of(name) for name in MODULES} - {"", "__main__", "_moved"} <= LAYER.keys()


@pytest.mark.parametrize("module", [name for name in MODULES if graph.package_of(name) in LAYER])
def test_imports_point_left(module):
    assert not imports_to_the_right(module, module_graph())


def imports_to_the_right(module, whole):
    package = graph.package_of(module)
    return {
        other
        for other in whole[module]
        if (target := graph.package_of(other)) not in ("", package) and LAYER[target] >= LAYER[package]
    }


@pytest.mark.parametrize(
    "line",
    [
        *("import dovetail.audit.b", "from dovetail.audit import b", "from dovetail.audit.b import name"),
        *("def f():\n    from dovetail.audit import b", "if TYPE_CHECKING:\n    from dovetail.audit.b import Name"),
        *(
            "from ..audit import b",
            "from ..audit.b import name",
            "from .. import audit",
            "import_module('dovetail.audit.b')",
        ),
    ],
)
def test_an_import_to_the_right_is_found(line, tmp_path):
    write_modules(tmp_path, {"journal.a": line, "audit.b": "from dovetail.journal import a", "audit": ""})
    whole = graph.module_graph(tmp_path)
    assert imports_to_the_right("dovetail.journal.a", whole)
    assert not imports_to_the_right("dovetail.audit.b", whole)


def test_cores_that_import_each_other_are_found(tmp_path):
    write_modules(tmp_path, {"pcp.a": "from dovetail.won.b import name", "won.b": ""})
    assert imports_to_the_right("dovetail.pcp.a", graph.module_graph(tmp_path)) == {"dovetail.won.b"}


def write_modules(source, modules):
    for name, text in modules.items():
        path = source.joinpath("dovetail", *name.split("."))
        path = path / "__init__.py" if "." not in name else path.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_no_module_imports_itself_in_a_circle():
    assert graph.find_cycles(module_graph()) == []


@pytest.mark.parametrize("module", MODULES)
def test_imports_are_of_modules_that_exist(module):
    """Neither old paths nor the lazy public names, behind which any package may be."""
    unknown = {name for name in imports()[module] if name.partition(".")[0] == "dovetail"} - MODULES.keys()
    tree = ast.parse(MODULES[module].read_text())
    public = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "dovetail"
        for alias in node.names
    }
    whole = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert not unknown
    assert {f"dovetail.{name}" for name in public - {"__version__"}} <= MODULES.keys()
    assert not {name for name in whole if name.partition(".")[0] == "dovetail"}


def test_modules_are_imported_by_variable_names_in_few_places():
    dynamic = {
        name
        for name, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if graph.is_import(node) and not (node.args and isinstance(node.args[0], ast.Constant))
    }
    assert dynamic == {
        "dovetail",
        "dovetail._moved",
        "dovetail.cli.main",
        "dovetail.fabrics",
        "dovetail.sim.scenario",
    }


@pytest.mark.parametrize("module", [name for name in MODULES if graph.package_of(name) in PURE])
def test_cores_are_pure(module):
    assert impurities(module, MODULES[module]) == []


def impurities(module, path):
    """What a module of a core imports, calls or defines that a core must not."""
    imported = {name.partition(".")[0] for name in graph.imports_of(module, path, MODULES)}
    found = sorted(imported - PURE_IMPORTS - PURE_EXCEPTIONS.get(module, set()))
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Await | ast.AsyncFunctionDef):
            found.append("await")
        elif isinstance(node, ast.Name) and node.id in IMPURE_NAMES:
            found.append(node.id)
        elif isinstance(node, ast.Attribute) and (
            node.attr in IMPURE_ATTRIBUTES or ast.unparse(node) in ("io.open", "io.FileIO")
        ):
            found.append(ast.unparse(node))
        elif isinstance(node, ast.ImportFrom):
            found += [alias.name for alias in node.names if alias.name in IMPURE_NAMES | IMPURE_ATTRIBUTES]
    return found


@pytest.mark.parametrize(
    "line",
    [
        *("import time", "import random", "from os import path", "import socket", "def f():\n    import asyncio"),
        *("if TYPE_CHECKING:\n    import logging", "import_module('time')", "import numpy", "async def f(): ..."),
        *("datetime.now(UTC)", "make = uuid.uuid4", "from uuid import uuid4", "open('x')", "io.open('x')", "print(1)"),
        *("Ed25519PrivateKey.generate()", "from ctypes import CDLL", "from concurrent import futures"),
    ],
)
def test_impurity_is_found(line, tmp_path):
    path = tmp_path / "core.py"
    path.write_text(line)
    assert impurities("dovetail.pcp.core", path)


@pytest.mark.parametrize(
    "module",
    [name for name in MODULES if graph.package_of(name) in GENERAL and not name.startswith("dovetail.audit.fabrics")],
)
def test_only_the_registry_names_fabrics(module):
    assert fabrics_named_by(module, MODULES[module]) == []


def fabrics_named_by(module, path):
    """Imports of cores, strings, comparisons and identifiers by which a module knows a fabric."""
    found = [name for name in graph.imports_of(module, path, MODULES) if graph.package_of(name) in FABRICS]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and FABRIC_NAME.fullmatch(node.value):
            found.append(node.value)
        elif isinstance(node, ast.Compare | ast.MatchValue):
            sides = [node.value] if isinstance(node, ast.MatchValue) else [node.left, *node.comparators]
            parts = [part for side in sides for part in getattr(side, "elts", [side])]
            found += [part.value for part in parts if isinstance(part, ast.Constant) and part.value in FABRICS]
        elif isinstance(node, ast.Name | ast.Attribute | ast.arg | ast.keyword | ast.FunctionDef | ast.ClassDef):
            name = next(getattr(node, field) for field in ("id", "attr", "arg", "name") if hasattr(node, field)) or ""
            found += [name] if {"pcp", "won", "wm"} & set(name.lower().split("_")) else []
    return found


@pytest.mark.parametrize(
    "line",
    [
        *("import dovetail.pcp.broker", "from dovetail.pcp import broker", "from dovetail import swarm"),
        *("def f():\n    from dovetail.won import node", "from ..swarm import dag", "from ..swarm.dag import Dag"),
        *("import_module('dovetail.won.node')", "x = 'pcp'", "x = fabric == 'swarm'", "x = y in ('a', 'swarm')"),
        *("match x:\n    case 'swarm': ...", "x = {'won': 1}", "x = dict(won=1)", "uri.startswith('wm:/')"),
        *("uri.startswith('pcp://')", "WON_URI = 1", "def read_pcp(): ..."),
    ],
)
def test_the_name_of_a_fabric_is_found(line, tmp_path):
    path = tmp_path / "page.py"
    path.write_text(line)
    assert fabrics_named_by("dovetail.lake.page", path)


@pytest.mark.parametrize("file", STATIC, ids=lambda file: file.name)
def test_pages_name_no_fabric(file):
    assert re.findall(r"\b(?:pcp|won|wm|swarm)\b", file.read_text()) == []


def test_pyspark_is_imported_by_the_audit_only():
    assert {graph.package_of(name) for name in users_of("pyspark", "py4j", "delta")} == {"audit"}


def users_of(*names):
    return {
        module for module, imported in imports().items() if {name.partition(".")[0] for name in imported} & set(names)
    }


def test_packages_keep_off_what_the_table_of_contributing_denies_them():
    network = users_of("asyncio", "anyio", "http", "picows", "select", "selectors", "socket", "ssl", "uvicorn")
    assert not {graph.package_of(name) for name in network} & {
        "fabrics",
        "keys",
        "journal",
        "lake",
        "receipt",
        "report",
    }
    clocks = users_of("asyncio", "datetime", "secrets", "socket", "threading", "time")
    assert not {name for name in clocks if graph.package_of(name) == "sim"}
    assert users_of_package("otel") == {"dovetail.cli.otel"}
    assert users_of_package("demo") == {"dovetail.cli.demo"}
    assert {graph.package_of(name) for name in users_of_package("api")} == {"sync", "cli"}


def users_of_package(package):
    return {
        module
        for module, imported in module_graph().items()
        if graph.package_of(module) != package and any(graph.package_of(name) == package for name in imported)
    }


@pytest.mark.parametrize("module", MODULES)
def test_modules_are_of_readable_size(module):
    assert len(MODULES[module].read_text().splitlines()) <= MAX_LINES


def test_contributing_lists_every_package_in_order():
    table = re.findall(r"^\| ((?:`[a-z_./]+`(?:, )?)+) \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    listed = [name.removesuffix(".py").rstrip("/") for row in table for name in re.findall(r"`([a-z_./]+)`", row)]
    packages = graph.package_graph()
    assert listed == [name for layer in graph.LAYERS for name in layer if name in packages]


def test_the_graph_in_the_architecture_page_is_current(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["import_graph.py", "--check"])
    assert graph.main() == 0, "run `make docs`"


def test_a_circle_is_found():
    circle = {"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("b")}
    assert graph.find_cycles(circle) == [frozenset("bc")]
    assert graph.find_cycles({"a": frozenset("b"), "b": frozenset()}) == []


def test_a_circle_of_lazy_and_type_only_imports_is_found(tmp_path):
    modules = {
        "pcp.a": "if TYPE_CHECKING:\n    from dovetail.pcp.b import Name",
        "pcp.b": "def f():\n    from dovetail.pcp import c",
        "pcp.c": "from .a import name",
        "pcp.d": "from .a import name",
    }
    write_modules(tmp_path, modules)
    assert graph.find_cycles(graph.module_graph(tmp_path)) == [frozenset(f"dovetail.pcp.{name}" for name in "abc")]
