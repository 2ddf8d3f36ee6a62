"""Mutation testing of the lines that implement the protocols: `make mutants`, not part of `make test`.

Each mutant is one small change to a module of a core, in a copy of the sources; the tests of that module are run
against it. A mutant that no test detects survives, and is printed. `docs/protocols/mutants.md` explains the survivors
that are equivalent to the original; every other one is a missing test.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGETS = {
    "swarm/content.py": (
        "tests/swarm/test_swarm_content.py tests/swarm/test_swarm_acceptance.py tests/swarm/test_swarm_pow.py"
    ),
    "swarm/acceptance.py": (
        "tests/swarm/test_swarm_acceptance.py tests/swarm/test_swarm_intake.py tests/swarm/test_swarm_dag.py"
    ),
    "swarm/dag.py": "tests/swarm/test_swarm_dag.py tests/swarm/test_swarm_peer.py",
    "won/confirmation.py": "tests/won/test_won_confirmation.py tests/properties/test_won_confirmation_properties.py",
    "won/rules.py": "tests/won/test_won_bad_input.py tests/won/test_won_node.py tests/won/test_won_owner.py",
    "won/integrity.py": "tests/won/test_won_integrity.py tests/won/test_won_last_message.py",
    "won/atom.py": "tests/won/test_won_node.py tests/won/test_won_owner_log_fanout.py",
    "pcp/lifetimes.py": "tests/pcp/test_pcp_lifetimes.py tests/pcp/test_pcp_broker.py tests/pcp/test_pcp_delivery.py",
    "pcp/routing.py": "tests/pcp/test_pcp_broker.py tests/pcp/test_pcp_delivery.py tests/pcp/test_pcp_uri.py",
    "pcp/decision.py": "tests/pcp/test_pcp_decision.py tests/pcp/test_pcp_broker.py tests/pcp/test_pcp_session.py",
    "pcp/recovery.py": "tests/pcp/test_pcp_recovery.py",
    "pcp/inventory.py": "tests/pcp/test_pcp_inventory.py tests/pcp/test_pcp_broker.py tests/pcp/test_pcp_session.py",
    "pcp/authorization.py": "tests/pcp/test_pcp_authorization.py tests/pcp/test_pcp_broker.py",
    "pcp/delivery.py": (
        "tests/pcp/test_pcp_delivery.py tests/pcp/test_pcp_broker.py tests/pcp/test_pcp_recovery.py"
        " tests/pcp/test_pcp_translation.py"
    ),
    "pcp/outbound.py": "tests/pcp/test_pcp_delivery.py tests/pcp/test_pcp_broker.py tests/pcp/test_pcp_recovery.py",
    "won/connection.py": "tests/won/test_won_node.py",
    "won/response_builder.py": (
        "tests/won/test_won_node.py tests/won/test_won_bad_input.py tests/won/test_won_confirmation.py"
        " tests/won/test_won_node_outboxes.py"
    ),
    "swarm/serving.py": "tests/swarm/test_swarm_serving.py tests/swarm/test_swarm_peer.py",
    "swarm/queries.py": "tests/swarm/test_swarm_queries.py tests/swarm/test_swarm_gossip.py",
    "swarm/late_messages.py": "tests/swarm/test_swarm_late_messages.py tests/swarm/test_swarm_serving.py",
    "swarm/own_messages.py": "tests/swarm/test_swarm_own_messages.py tests/swarm/test_swarm_peer.py",
}
SECONDS = 300
_SWAPS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


def mutate(source: str) -> Iterator[tuple[int, str, str]]:
    """Each mutant of a module: the line, what was changed, and its source."""
    tree = ast.parse(source)
    for number, node in enumerate(ast.walk(tree)):
        for change in range(_count_changes(node)):
            mutant = copy.deepcopy(tree)
            twin = next(item for at, item in enumerate(ast.walk(mutant)) if at == number)
            before = ast.unparse(twin)
            _change(twin, change)
            yield getattr(node, "lineno", 0), f"{before}  ->  {ast.unparse(twin)}", ast.unparse(mutant)


def _count_changes(node: ast.AST) -> int:
    match node:
        case ast.Compare(ops=[op]) if type(op) in _SWAPS:
            return 1
        case ast.BoolOp() | ast.If() | ast.IfExp() | ast.While():
            return 1
        case ast.Constant(value=value) if type(value) in (int, bool):
            return 1
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            return 1
        case _:
            return 0


def _change(node: ast.AST, _: int) -> None:
    match node:
        case ast.Compare(ops=[op]):
            node.ops = [_SWAPS[type(op)]()]
        case ast.BoolOp(op=op):
            node.op = ast.Or() if isinstance(op, ast.And) else ast.And()
        case ast.If() | ast.IfExp() | ast.While():
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case ast.Constant(value=bool(value)):
            node.value = not value
        case ast.Constant(value=value) if isinstance(value, int):
            node.value = value + 1
        case ast.BinOp(op=op):
            node.op = ast.Sub() if isinstance(op, ast.Add) else ast.Add()
        case _:
            raise AssertionError(node)


def survives(sources: Path, tests: str) -> bool:
    """Whether the tests pass on these sources."""
    options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not soak", "-o", f"pythonpath={sources} tests"]
    command = [sys.executable, "-m", "pytest", *options, *tests.split()]
    own = {"PYTHONPATH": str(sources), "PYTHONDONTWRITEBYTECODE": "1", "DOVETAIL_FAST": "python"}
    environment = {**os.environ, **own}
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module", nargs="*", help="such as swarm/content.py; all by default")
    parser.add_argument("--sample", type=int, default=0, help="so many mutants of each module, 0: all")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    survivors = total = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        sources = Path(folder) / "src"
        shutil.copytree(ROOT / "src", sources, ignore=shutil.ignore_patterns("__pycache__"))
        for module in arguments.module or TARGETS:
            path = sources / "dovetail" / module
            source = path.read_text()
            if not survives(sources, TARGETS[module]):
                sys.stderr.write(f"the tests of {module} fail on the unchanged module: nothing can be concluded\n")
                return 1
            mutants = list(mutate(source))
            if arguments.sample:
                chance = random.Random(arguments.seed)  # noqa: S311 - which mutants to try
                mutants = chance.sample(mutants, min(arguments.sample, len(mutants)))
            for line, change, text in mutants:
                total += 1
                path.write_text(text)
                if survives(sources, TARGETS[module]):
                    survivors += 1
                    sys.stdout.write(f"{module}:{line}: {change}\n")
                    sys.stdout.flush()
            path.write_text(source)
    sys.stdout.write(f"{total} mutants, {total - survivors} found, {survivors} survived\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
