"""Run the benchmarks; write what they say, with the machine and the peers, to docs/benchmarks.md, and costs to README.

    python -m benchmarks.all [--rounds N] [--seconds S] [--only PART,...] [--keep FILE] [--from FILE]

Takes about fifteen minutes on two cores with nobody else. Every benchmark is a process of its own; one that fails, and
a peer that is missing, is said on the page. `--keep` stores the rows as JSON, `--from` writes the page from such a
file. `--rounds 1 --seconds 0.2` shows in few minutes whether all of it works; `--only` runs, and shows, no other parts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.charts import bars
from benchmarks.pcp import REACH
from benchmarks.pcp_servers import find_nats
from dovetail import __version__

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"
MARKS = ("<!-- make bench-all: -->\n", "<!-- end -->\n")
"""What it writes to README stands between these."""
IMAGES = ROOT / "docs" / "images"
TIMEOUT_SECONDS = 900
MAX_COLUMNS = 6
Row = dict[str, Any]
IN_PYTHON = " in Python"
WORDS = {
    "pcp": (
        "Broker beside its peers",
        (
            "CPU microseconds of the server per delivered message, and deliveries a second; `of` a peer is our figure "
            "divided by its own. The last table is memory per idle connection."
        ),
    ),
    "send": (
        "Sending alone",
        (
            "CPU microseconds that one thread needs to write one message to each of 1,000 connections, with nothing "
            "else: a floor for b1."
        ),
    ),
    "core": (
        "Broker core",
        (
            "CPU microseconds per delivery without sockets and journal: messages that are alike, messages that all "
            "differ, and one message to many receivers."
        ),
    ),
    "journal": (
        "Journal appends",
        "Hops kept a second, beside the same bytes written plainly to the same disk with the same number of fsyncs.",
    ),
    "journal cost": ("Journal cost by part", "CPU microseconds per message of 480 bytes with two hops."),
    "verify": ("Journal verification", "Hops that `journal verify` checks a second, and the CPU time of each."),
    "swarm": (
        "Swarm peer",
        (
            "One peer that takes in messages from four links, keeps them and passes each on. `messages_per_cpu_second` "
            "does not count waiting for the disk."
        ),
    ),
    "won": (
        "Delivery chain of won",
        (
            "Microseconds of CPU per chain: the signatures alone (`floor_us`), the cores of four parties, and all of "
            "them over TLS on loopback with journals that fsync; the ratios are to the signatures."
        ),
    ),
}
"""By part, its heading and what its tables show."""


@dataclass(frozen=True)
class Part:
    """One benchmark: its command and the implementation it uses."""

    name: str
    command: tuple[str, ...]
    fast: str = ""


def parts(rounds: int, seconds: float) -> list[Part]:
    pcp = ("benchmarks.pcp", "--json", "--rounds", str(rounds), "--seconds", str(seconds), "--connections", "2000")
    journal = ("benchmarks.journal", "--json", "--rounds", str(3 * rounds), "--seconds", "0.5")
    verify = ("benchmarks.verify", "--json", "--rounds", str(rounds + 2))
    swarm = ("benchmarks.swarm_peer", "--rounds", str(3 * rounds))
    won = ("benchmarks.won", "--json", "--chains", "320", "--rounds", str(3 * rounds), "--length", "0")
    plain = ("benchmarks.pcp", "--json", "--rounds", "1", "--seconds", str(seconds), "--connections", "0")
    return [
        Part("pcp", pcp, "native"),
        Part("pcp in Python", (*plain, "--alone"), "python"),
        Part("send", ("benchmarks.send_floor", "--json")),
        Part("core", ("benchmarks.pcp_core", "--json"), "native"),
        Part("core in Python", ("benchmarks.pcp_core", "--json"), "python"),
        Part("journal", journal, "native"),
        Part("journal in Python", journal, "python"),
        Part("journal cost", ("benchmarks.journal_cost", "--json"), "native"),
        Part("journal cost in Python", ("benchmarks.journal_cost", "--json"), "python"),
        Part("verify", verify, "native"),
        Part("verify in Python", verify, "python"),
        Part("swarm", swarm, "native"),
        Part("swarm in Python", swarm, "python"),
        Part("won", won, "native"),
        Part("won in Python", won, "python"),
    ]


def run_part(part: Part) -> Row:
    """The rows that a benchmark prints, and its other output."""
    environment = {**os.environ, "DOVETAIL_FAST": part.fast, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    print(f"bench-all: {part.name}", file=sys.stderr, flush=True)
    start = time.monotonic()
    # its own process group, so that the servers it starts end with it
    process = subprocess.Popen(
        [sys.executable, "-m", *part.command],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, complaints = process.communicate(timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        printed, complaints = process.communicate()
        complaints += f"\nno end after {TIMEOUT_SECONDS} s"
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    said = complaints.strip().splitlines()
    rows = [row for line in printed.splitlines() if (row := read_row(line)) is not None]
    command = f"python -m {' '.join(part.command)}"
    if part.fast:
        command = f"DOVETAIL_FAST={part.fast} {command}"
    return {
        "command": command,
        "rows": rows,
        "said": said[-3:],
        "failed": process.returncode != 0 or not rows,
        "seconds": round(time.monotonic() - start),
    }


def read_row(line: str) -> Row | None:
    """A row that a benchmark printed; None for anything else, including a truncated row."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def describe_machine() -> Row:
    """What the figures depend on."""
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor() or platform.machine(),
    )
    memory = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    nats = find_nats()
    start = time.perf_counter()
    total = 0
    for number in range(20_000_000):
        total += number
    return {
        "dovetail": __version__,
        "processor": f"{os.cpu_count()} cores, {model}",
        "memory": f"{memory / 1024**2:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "Python, SQLite": f"{platform.python_version()}, {sqlite3.sqlite_version}",
        "mosquitto": _version("mosquitto", "-h"),
        "NATS": "not installed" if nats is None else ".".join(map(str, nats[1])),
        "load before it": f"{os.getloadavg()[0]:.1f}",
        "20 million additions in Python": f"{time.perf_counter() - start:.1f} s",
        "day": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _version(program: str, option: str) -> str:
    found = shutil.which(program) or shutil.which(program, path="/usr/sbin")
    if found is None:
        return "not installed"
    said = subprocess.run([found, option], capture_output=True, text=True, check=False).stdout
    return said.partition("\n")[0].replace("mosquitto version ", "")


def table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    heads = list(heads)
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    return [*lines, *(f"| {' | '.join(map(show, row))} |" for row in rows), ""]


def show(cell: object) -> str:
    """A cell as readable text: with thousands separators and three significant digits."""
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        return "" if cell is None else str(cell)
    if abs(cell) >= 1000 or cell == int(cell):
        return f"{cell:,.0f}"
    return f"{cell:.3g}" if abs(cell) < 100 else f"{cell:.0f}"


def judge(value: float | None, limit: float, *, is_most: bool) -> str:
    if value is None:
        return "not measured"
    return "reached" if (value <= limit if is_most else value >= limit) else "**not reached**"


class Results:
    """All rows, with lookup."""

    def __init__(self, data: Row) -> None:
        self.machine: Row = data["machine"]
        self.parts: dict[str, Row] = data["parts"]

    def rows(self, part: str) -> list[Row]:
        rows: list[Row] = self.parts.get(part, {}).get("rows", [])
        return rows

    def value(self, part: str, key: str, **where: str) -> float | None:
        """One figure of the row where the given columns have the given values, or begin with them."""
        for row in self.rows(part):
            if key in row and all(str(row.get(name, "")).startswith(text) for name, text in where.items()):
                return float(row[key])
        return None


def reach(results: Results) -> list[list[object]]:
    """Every target with what was measured."""
    rows: list[list[object]] = []
    for workload, limits in REACH.items():
        for peer, limit in limits.items():
            value = results.value("pcp", f"of {peer}", workload=workload)
            rows.append([f"{workload}: cost beside {peer}", f"<= {limit}", value, judge(value, limit, is_most=True)])
    for workload in REACH:
        cost = results.value("pcp", "of jetstream always", workload=workload)
        rate = results.value("pcp", "rate of jetstream always", workload=workload)
        verdict = judge(cost, 1, is_most=True) if cost != 1 else "reached"
        what = None if cost is None else f"cost {cost}, rate {rate}"
        rows.append([f"{workload}: `full` beside JetStream synced always", "cost <= 1", what, verdict])
    for workload, limit in (("groups of 100", 0.7), ("groups of 100, 8", 0.8)):
        value = results.value("journal", "of the floor", workload=workload)
        rows.append([f"journal, {workload}{' callers' if '8' in workload else ''}: of the floor", f">= {limit}", value])
        rows[-1].append(judge(value, limit, is_most=False))
    value = results.value("verify", "hops/s")
    rows.append(["`journal verify`, hops a second", ">= 1,000,000", value, judge(value, 1e6, is_most=False)])
    value = results.value("swarm", "messages_per_second")
    rows.append(["swarm peer, messages a second", ">= 60,000", value, judge(value, 60_000, is_most=False)])
    value = results.value("won", "loopback_ratio")
    shown = None if value is None else round(value, 2)
    rows.append(["won chain beside its signatures", "<= 2.5", shown, judge(value, 2.5, is_most=True)])
    return rows


def write_page(results: Results) -> None:
    """docs/benchmarks.md and its pictures."""
    lines = [
        "# Benchmarks",
        "",
        "    make bench-all",
        "",
        "writes this page: everything on it was measured in one run, on this machine. Peers take part where they are",
        "installed. Our figures are with the native code and, where it says so, in Python alone.",
        "",
        *table(["machine", ""], results.machine.items()),
        "## What is aimed at",
        "",
        "Costs are CPU microseconds of the server per delivered message, as a multiple of the peer's: medians of",
        "rounds in which all servers take turns. Journal, rules and metrics are on, and what the journal does later",
        "is counted.",
        "",
        *table(["what", "aim", "measured", ""], reach(results)),
        "[The journal](explain/journal.md#where-the-time-goes) says where the time goes, and why some aims are not",
        "reached.",
        "",
        "## The broker",
        "",
        "a1: 100 pairs with one message of 480 bytes under way each; a32: 20 pairs with 32; b1: one sender to 1,000",
        "receivers, one message under way; b4: four. mosquitto and NATS keep nothing, a JetStream file stream and",
        "Dovetail keep every message.",
        "",
    ]
    lines += picture(results, "bench-pcp", ("dovetail", "mosquitto", "nats", "jetstream"), relaxed=True)
    lines += ["With every acknowledged message on the disk:", ""]
    lines += picture(results, "bench-pcp-full", ("dovetail full", "jetstream always"), relaxed=False)
    for name, part in results.parts.items():
        heading, sentence = WORDS[name.removesuffix(IN_PYTHON)]
        suffix = " (Python alone)" if name.endswith(IN_PYTHON) else ""
        lines += [f"## {heading}{suffix}", "", sentence, "", f"    {part['command']}", ""]
        lines += [*(f"> {text}" for text in part["said"]), ""] if part["said"] else []
        lines += ["It failed.", ""] if part["failed"] else []
        lines += raw_table(part["rows"])
    PAGE.write_text("\n".join(lines).rstrip() + "\n")


SHAPES = {
    "a1": "100 pairs, one message in flight each",
    "a32": "20 pairs, 32 messages in flight each",
    "b1": "one sender to 1,000 receivers",
    "b4": "the same, four messages in flight",
}


def write_readme(results: Results) -> None:
    """The costs of the broker and its peers, in the section of README for them."""
    servers = {"Dovetail": "dovetail", "JetStream": "jetstream", "NATS": "nats", "mosquitto": "mosquitto"}
    rows = [
        [shape, *(results.value("pcp", f"{server} us", workload=name) for server in servers.values())]
        for name, shape in SHAPES.items()
    ]
    before, begin, rest = README.read_text().partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if begin and end:
        README.write_text(before + begin + "\n".join(table(["", *servers], rows)) + "\n" + end + after)


def picture(results: Results, name: str, servers: tuple[str, ...], *, relaxed: bool) -> list[str]:
    """Write a chart of costs to a file beside the page; returns the markup that shows it."""
    rows = [row for row in results.rows("pcp") if f"{servers[0]} us" in row]
    series = {server: [row.get(f"{server} us") for row in rows] for server in servers}
    IMAGES.mkdir(exist_ok=True)
    title = "CPU microseconds of the server per delivered message"
    (IMAGES / f"{name}.svg").write_text(bars(title, [str(row["workload"]) for row in rows], series))
    what = "relaxed durability" if relaxed else "durability full"
    return [f"![{title}, {what}](images/{name}.svg)", ""]


def raw_table(rows: list[Row]) -> list[str]:
    """Rows as printed; those with the same columns share a table, which is transposed if it would be too wide."""
    lines: list[str] = []
    for keys in dict.fromkeys(tuple(row) for row in rows):
        alike = [row for row in rows if tuple(row) == keys]
        if len(keys) <= MAX_COLUMNS:
            lines += table(keys, ([row[key] for key in keys] for row in alike))
        else:
            heads = [keys[0], *(str(row[keys[0]]) for row in alike)]
            lines += table(heads, ([key, *(row[key] for row in alike)] for key in keys[1:]))
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="how long a server is under load in a round")
    parser.add_argument("--only", help="run these parts, by the names that are shown, separated by commas")
    parser.add_argument("--keep", type=Path, help="store the rows as JSON")
    parser.add_argument("--from", dest="source", type=Path, help="write the page from such a file; measure nothing")
    arguments = parser.parse_args()
    if arguments.source is not None:
        data = json.loads(arguments.source.read_text())
    else:
        data = {"machine": describe_machine(), "parts": {}}
        chosen = parts(arguments.rounds, arguments.seconds)
        only = [part.name for part in chosen] if arguments.only is None else arguments.only.split(",")
        if unknown := set(only) - {part.name for part in chosen}:
            parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(part.name for part in chosen)}")
        for part in (part for part in chosen if part.name in only):
            data["parts"][part.name] = run_part(part)
            if arguments.keep is not None:
                arguments.keep.write_text(json.dumps(data, indent=1))
    write_page(Results(data))
    if arguments.only is None:
        write_readme(Results(data))
    print(PAGE.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
