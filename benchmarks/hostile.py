"""Run all attacks of the other benchmarks; write their figures to docs/explain/guarantees.md.

    python -m benchmarks.hostile [--only PART] [--page FILE]

Takes about ten minutes on two cores with nobody else. Each table of the page stands between marks and is replaced as a
whole, with what it was measured on; the text around it stays. A part that fails leaves its table as it was.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "explain" / "guarantees.md"
END = "<!-- end -->"
LIMIT_S = 600
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """One table: commands whose rows are joined by their attack, its columns, and figures from before the bounds.

    A column's value is a key of the rows, after a dot that of the second command; `earlier` is by attack, in the order
    of `earlier_columns`.
    """

    commands: tuple[str, ...]
    columns: dict[str, str]
    earlier_columns: tuple[str, ...] = ()
    earlier: dict[str, tuple[str, ...]] = field(default_factory=dict)


PARTS = {
    "strangers": Part(
        ("pcp_hostile",),
        {
            "MiB before": "before MiB",
            "most": "peak MiB",
            "15 s after": "after MiB",
            "honest: median, s": "honest s",
            "longest": "longest s",
            "from another address: median, s": "elsewhere s",
            "longest ": "elsewhere longest s",
        },
        ("earlier: most", "earlier: 15 s after", "earlier: honest"),
        {
            "10,000 silent connections": ("591", "590", "0.06 s"),
            "10,000 with half a TLS hello": ("624", "628", "4.8 s"),
            "10,000 with a whole TLS hello": ("601", "630", "over 8 s"),
            "30 endless frames": ("1,083", "65", "0.4 s"),
            "30 endless fragments": ("992", "65", "0.4 s"),
            "3,000 TLS 1.2 sessions": ("93", "93", "0.3 s"),
        },
    ),
    "swarm": Part(
        ("swarm_hostile",),
        {
            "MiB before": "before MiB",
            "most": "peak MiB",
            "5 s after": "after MiB",
            "share of a core": "cpu",
            "bytes read": "in",
            "bytes sent": "out",
            "sent per byte read": "out/in",
            "median pull, s": "honest s",
            "share of pulls over 2 s": "lost",
        },
    ),
    "won": Part(
        ("won_hostile", "won_hostile --amid"),
        {
            "MiB before": "before MiB",
            "most": "peak MiB",
            "median chain, s": "chain s",
            "longest": "longest s",
            "share of a core 3 s after": "cpu after",
            "SIGTERM after it, s": "SIGTERM s",
            "SIGTERM amid it, s": ".SIGTERM s",
        },
        ("earlier",),
        {
            "30 endless empty fragments": ("139 MiB",),
            "3,000 dead destinations": ("0.22 of a core for ever",),
            "50 owners that do not read": ("14 s to stop",),
        },
    ),
    "admitted": Part(
        ("pcp_admitted",),
        {
            "median round trip, s": "median s",
            "longest": "longest s",
            "most MiB": "peak MiB",
            "SIGTERM, s": "SIGTERM s",
        },
        ("earlier: median, longest", "earlier: SIGTERM, s"),
        {
            "none": ("0.0006, 0.02", ""),
            "one that sends to nobody as fast as it can": ("0.40, 0.81", "1.3"),
            "four of them": ("0.99, 1.4", "7.3"),
            "two that send rubbish": ("0.82, 1.8", "1.7"),
            "50 that do not read": ("0.026, 0.16", "1.1"),
        },
    ),
}


def run(command: str) -> list[Row]:
    """The rows that a benchmark prints."""
    module, *options = command.split()
    arguments = [sys.executable, "-m", f"benchmarks.{module}", "--json", *options]
    done = subprocess.run(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT_S)
    return [json.loads(line) for line in done.stdout.splitlines()]


def tabulate(part: Part, measured: list[list[Row]]) -> list[str]:
    """The table in Markdown."""
    lines = [("attack", *part.columns, *part.earlier_columns)]
    seconds = {row["attack"]: row for rows in measured[1:] for row in rows}
    for row in measured[0]:
        name = row["attack"]
        values = [seconds[name][key[1:]] if key[0] == "." else row[key] for key in part.columns.values()]
        told = part.earlier.get(name, ("",) * len(part.earlier_columns))
        lines.append((name, *map(show, values), *told))
    lines.insert(1, ("---",) * len(lines[0]))
    return ["| " + " | ".join(each.strip() for each in line) + " |" for line in lines]


def show(value: float) -> str:
    """A figure with as many digits as it deserves."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def describe_machine() -> str:
    """What the figures depend on."""
    measured = ["--", "src", "native", "benchmarks"]
    commit = _git("log", "-1", "--format=%h", *measured)
    changed = " with changes" if _git("status", "--porcelain", *measured) else ""
    return f"{os.cpu_count()} cores, a load of {os.getloadavg()[0]:.1f} before it, revision {commit}{changed}"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout.strip()


def replace(page: str, name: str, lines: list[str]) -> str:
    """The page with another table between a part's marks."""
    mark = f"<!-- make bench-hostile: {name} -->"
    head, found, rest = page.partition(mark)
    if not found:
        raise SystemExit(f"the page has no {mark}")
    return "\n".join([head + mark, *lines, END]) + rest.partition(END)[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, help="one part")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the tables are")
    arguments = parser.parse_args()
    failed = []
    for name in [arguments.only] if arguments.only else PARTS:
        part, machine = PARTS[name], describe_machine()
        try:
            table = tabulate(part, [run(command) for command in part.commands])
        except (subprocess.SubprocessError, KeyError) as error:
            failed.append(name)
            print(f"{name}: {error}", file=sys.stderr)
            continue
        lines = [f"`python -m benchmarks.hostile --only {name}`: {machine}.", "", *table]
        print("\n".join(lines), flush=True)
        arguments.page.write_text(replace(arguments.page.read_text(), name, lines))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
