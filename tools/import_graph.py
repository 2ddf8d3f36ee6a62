"""Prints which packages import which; `--write` writes the graph into docs/explain/architecture.md, `--check` compares.

`--at REVISION` prints that of another revision, with the lines of each package.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
PAGE = ROOT / "docs" / "explain" / "architecture.md"
BEGIN, END = "<!-- import graph: begin -->", "<!-- import graph: end -->"

LAYERS = (
    ("fast",),
    ("model",),
    ("tlog",),
    ("keys",),
    ("pcp", "won", "swarm"),
    ("fabrics",),
    ("journal",),
    ("lake",),
    ("receipt",),
    ("runtime",),
    ("otel",),
    ("sim",),
    ("audit",),
    ("report",),
    ("dashboard",),
    ("site",),
    ("api",),
    ("sync",),
    ("demo",),
    ("cli",),
)
"""A package imports only from layers before its own; packages of one layer do not import each other."""

Graph = Mapping[str, frozenset[str]]


def modules(source: Path = SOURCE) -> dict[str, Path]:
    """Every module of the project by its full name."""
    found = {}
    for path in sorted((source / "dovetail").rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(module: str, path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """The full names that a module imports, also inside functions, for types only, relatively or by a call."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = _source_of(node, module, is_package=path.name == "__init__.py")
            for alias in node.names:
                full = f"{source}.{alias.name}"
                yield full if full in known else source
        elif is_import(node) and node.args and isinstance(node.args[0], ast.Constant):
            yield str(node.args[0].value)


def is_import(node: ast.AST) -> TypeGuard[ast.Call]:
    """True for a call that imports."""
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__"))


def _source_of(node: ast.ImportFrom, module: str, *, is_package: bool) -> str:
    """The full name of the module that an import statement takes names from."""
    if not node.level:
        return node.module or ""
    parents = module.split(".")
    kept = len(parents) - node.level + is_package
    return ".".join([*parents[:kept], *filter(None, [node.module])])


def module_graph(source: Path = SOURCE) -> Graph:
    """For every module the modules of the project that it imports, but for the top one, whose version others take."""
    known = modules(source)
    return {
        name: frozenset(known.keys() & set(imports_of(name, path, known)) - {"dovetail"})
        for name, path in known.items()
    }


def package_of(module: str) -> str:
    """The first name below `dovetail`; empty for the top module."""
    return module.partition(".")[2].partition(".")[0]


def package_graph(source: Path = SOURCE) -> Graph:
    """For every package the other packages that its modules import."""
    graph: defaultdict[str, set[str]] = defaultdict(set)
    for name, imported in module_graph(source).items():
        graph[package_of(name)] |= {package_of(other) for other in imported} - {package_of(name), ""}
    return {name: frozenset(imported) for name, imported in graph.items()}


def find_cycles(graph: Graph) -> list[frozenset[str]]:
    """The sets of modules that import each other in a circle: those that reach each other."""
    reached = {name: _reachable(graph, name) for name in graph}
    circles = {frozenset(other for other in found if name in reached[other]) for name, found in reached.items()}
    return sorted((circle for circle in circles if circle), key=sorted)


def _reachable(graph: Graph, start: str) -> set[str]:
    found: set[str] = set()
    queue = [start]
    while queue:
        new = graph[queue.pop()] - found
        found |= new
        queue += new
    return found


def render(graph: Graph) -> str:
    """The graph as a Markdown table, in the order of the layers."""
    lines = ["| package | imports |", "|---|---|"]
    lines += [f"| `{name}` | {_imported(graph, name)} |" for name in _ordered(graph)]
    return "\n".join(lines)


def render_with_lines(source: Path) -> str:
    """The same for any source tree, with the lines of each package."""
    graph, sizes = package_graph(source), Counter[str]()
    for name, path in modules(source).items():
        sizes[package_of(name)] += len(path.read_text().splitlines())
    lines = [f"| package | lines, of {sizes.total()} | imports |", "|---|---|---|"]
    lines += [f"| `{name}` | {sizes[name]} | {_imported(graph, name)} |" for name in _ordered(graph)]
    return "\n".join(lines)


def _ordered(graph: Graph) -> list[str]:
    layered = [name for layer in LAYERS for name in layer if name in graph]
    return layered + sorted(graph.keys() - {*layered, "", "__main__", "_moved"})


def _imported(graph: Graph, package: str) -> str:
    return ", ".join(f"`{name}`" for name in _ordered(graph) if name in graph[package]) or "nothing"


def render_at(revision: str) -> str:
    """The graph of a revision, with lines."""
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder, "src.tar")
        command = ["git", "archive", f"--output={archive}", revision, "src"]
        subprocess.run(command, cwd=ROOT, check=True)
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        return render_with_lines(Path(folder, "src"))


def main() -> int:
    """Write, compare or print the graph."""
    parser = argparse.ArgumentParser(description=__doc__)
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", action="store_true")
    action.add_argument("--check", action="store_true")
    action.add_argument("--at", metavar="REVISION")
    options = parser.parse_args()
    if options.at:
        print(render_at(options.at))
        return 0
    drawing = render(package_graph())
    page = PAGE.read_text()
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    current = f"{head}{BEGIN}\n\n{drawing}\n\n{END}{tail}"
    if options.write:
        PAGE.write_text(current)
    elif options.check:
        if page != current:
            print(f"{PAGE.relative_to(ROOT)} is not current: make docs", file=sys.stderr)
            return 1
    else:
        print(drawing)
    return 0


if __name__ == "__main__":
    sys.exit(main())
