"""The operator's kit in deploy/ as tests read it: its expressions, its metrics, and the programs that check it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
_RULE = re.compile(r"- alert: (\w+)\n +expr: (?:\|\n((?: {10,}.*\n)+)|(.*)\n)")
_METRIC = re.compile(r"\b((?:dovetail|process)_[a-z0-9_]+)\b(?:\{(.*?)\})?")


def rules() -> dict[str, str]:
    """The expression of each alert."""
    return {name: block or line for name, block, line in _RULE.findall(RULES.read_text())}


def panels() -> dict[tuple[str, str], list[str]]:
    """The expressions of each panel, by dashboard and title, with the variables of Grafana filled in."""
    found = {}
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            found[path.stem, panel["title"]] = [
                target["expr"].replace("$instance", ".*").replace("$__rate_interval", "1m")
                for target in panel["targets"]
            ]
    return found


def metrics_of(expression: str) -> set[tuple[str, frozenset[str]]]:
    """The metrics of an expression, each with its label matchers."""
    return {
        (name, frozenset(re.findall(r"(\w+) *(?:=~|!~|!=|=)", matchers or "")))
        for name, matchers in _METRIC.findall(expression)
    }


def program(name: str) -> str:
    """A program that checks the kit; the test is skipped if it is not installed."""
    for found in (shutil.which(name), ROOT / ".venv-kit" / "bin" / name, Path.home() / "go" / "bin" / name):
        if found is not None and Path(found).exists():
            return str(found)
    pytest.skip(f"there is no {name} here")


def run(*command: object, cwd: Path = ROOT, stdin: str = "") -> str:
    """The output of a program; fails the test if it does not exit with 0."""
    ran = subprocess.run(
        [*map(str, command)], cwd=cwd, input=stdin, text=True, capture_output=True, check=False, timeout=100
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout
