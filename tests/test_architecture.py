"""The structure of the code: who may import whom, what cores may not touch, and that the pages describe it."""

import ast
import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
IMPURE = {
    *("asyncio", "logging", "multiprocessing", "os", "pathlib", "random", "secrets", "select", "socket"),
    *("sqlite3", "ssl", "subprocess", "tempfile", "threading", "time", "urllib"),
}
"""What a core must not import: clocks, files, sockets, threads, processes, randomness."""

GENERAL = ("journal", "lake", "receipt", "audit", "report", "dashboard")
"""Packages that know fabrics only through the registry; the audit has one module for each in `audit.fabrics`."""
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
GRAPH = graph.module_graph()
STATIC = [
    file for file in (ROOT / "src" / "dovetail").rglob("static/*") if file.suffix in (".js", ".css", ".html", ".svg")
]
LAYER = {name: number for number, layer in enumerate(graph.LAYERS) for name in layer}


def test_every_package_has_its_layer():
    assert {graph.package_of(name) for name in MODULES} - {"", "__main__", "_moved"} <= LAYER.keys()


@pytest.mark.parametrize("module", [name for name in MODULES if graph.package_of(name) in LAYER])
def test_imports_point_left(module):
    package = graph.package_of(module)
    wrong = {
        other
        for other in GRAPH[module]
        if (target := graph.package_of(other)) not in ("", package) and LAYER[target] >= LAYER[package]
    }
    assert not wrong


def test_no_module_imports_itself_in_a_circle():
    assert graph.find_cycles(GRAPH) == []


@pytest.mark.parametrize("module", [name for name in MODULES if graph.package_of(name) in PURE])
def test_cores_are_pure(module):
    tree = ast.parse(MODULES[module].read_text())
    imported = {name.partition(".")[0] for name in graph.imports_of(MODULES[module], MODULES)}
    assert not imported & IMPURE
    assert not any(isinstance(node, ast.Await | ast.AsyncFunctionDef) for node in ast.walk(tree))


@pytest.mark.parametrize(
    "module",
    [name for name in MODULES if graph.package_of(name) in GENERAL and not name.startswith("dovetail.audit.fabrics.")],
)
def test_only_the_registry_names_fabrics(module):
    cores = tuple(f"dovetail.{name}." for name in FABRICS)
    names = [name for name in graph.imports_of(MODULES[module], MODULES) if name.startswith(cores)]
    tree = ast.parse(MODULES[module].read_text())
    names += [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value in ("pcp", "won")]
    assert not names


@pytest.mark.parametrize("file", STATIC, ids=lambda file: file.name)
def test_pages_name_no_fabric(file):
    assert re.findall(r"\b(?:pcp|won|wm|swarm)\b", file.read_text()) == []


def test_pyspark_is_imported_by_the_audit_only():
    users = {name for name, path in MODULES.items() if any(map(is_spark, graph.imports_of(path, MODULES)))}
    assert {graph.package_of(name) for name in users} == {"audit"}


def is_spark(name):
    return name.partition(".")[0] == "pyspark"


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
