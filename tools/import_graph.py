"""Which packages import which; `--write` draws the graph into docs/explain/architecture.md, `--check` compares."""

from __future__ import annotations

import argparse
import ast
import sys
from collections import defaultdict
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


def modules() -> dict[str, Path]:
    """Every module of the project by its full name."""
    found = {}
    for path in sorted((SOURCE / "dovetail").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
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


def module_graph() -> Graph:
    """For every module the modules of the project that it imports, but for the top one, whose version others take."""
    known = modules()
    return {
        name: frozenset(known.keys() & set(imports_of(name, path, known)) - {"dovetail"})
        for name, path in known.items()
    }


def package_of(module: str) -> str:
    """The first name below `dovetail`; empty for the top module."""
    return module.partition(".")[2].partition(".")[0]


def package_graph() -> Graph:
    """For every package the other packages that its modules import."""
    graph: defaultdict[str, set[str]] = defaultdict(set)
    for name, imported in module_graph().items():
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
    order = [name for layer in LAYERS for name in layer if name in graph]
    lines = ["| package | imports |", "|---|---|"]
    for name in order:
        imported = ", ".join(f"`{other}`" for other in order if other in graph[name])
        lines.append(f"| `{name}` | {imported or 'nothing'} |")
    return "\n".join(lines)


def main() -> int:
    """Write or compare the drawing."""
    parser = argparse.ArgumentParser(description=__doc__)
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", action="store_true")
    action.add_argument("--check", action="store_true")
    options = parser.parse_args()
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
