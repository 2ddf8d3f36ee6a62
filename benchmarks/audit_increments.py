"""What a run of the audit costs after another: everything, 1 % more, about 100 hops more, nothing new.

    python -m benchmarks.audit_increments [--beside DIR] [--messages N] [--peers N] [--times N] [--cold] [--once]
                                          [--whole-below N] [--driver-memory 4g] [--json FILE]

The lake has N swarm messages, each held by all peers, with 5 % of that of pcp and 1 % of won. With the defaults it is
1.1 million hops. All runs are those of one follower in one session, which has done all kinds of run once over a small
lake before (`--cold` leaves that out). With `--times` a second lake of so many times the size is audited whole, and
then takes increments of the same sizes: what they cost beside those of the first lake tells whether an increment grows
with what is there. With `--once` there is one run of each kind, not two. `--whole-below 0 --messages 2000` shows what
the plans of an increment cost, with hardly any data.

With `--beside`, another revision audits the same lakes: DIR is a checkout of it with its own `.venv`. The two take
turns, and who begins changes from run to run. Manifests are then of the format that older revisions read as well.

For each run: seconds, seconds of processor time, Spark jobs, and the same of the steps that took most. At the end, the
ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.audit_lake import LakeWriter, Shares
from dovetail.audit.session import SMALL_ROWS
from dovetail.lake.manifest import MANIFEST_FORMAT, SEALED_FORMAT

FEW = 100
"""Hops of a small increment."""
SLOWEST = 6
WARM_MESSAGES = 32_000
OWN, OTHER = "here", "beside"


class Follower:
    """The process that runs the audit of one checkout."""

    def __init__(self, name: str, checkout: Path, python: str, *options: str) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [python, "-P", Path(__file__).with_name("audit_follower.py"), *options],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": f"{checkout / 'src'}:{checkout}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, root: Path, **more: bool) -> dict[str, Any]:
        """One run over the lake in `root`, or one question about it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"lake": str(root / "lake"), "tables": str(root / self.name), **more}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name}: the audit has ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def measure(
    followers: list[Follower], root: Path, writer: LakeWriter, messages: int, more: int, name: str, often: int
) -> list[dict[str, Any]]:
    """A full run, then so many of each kind of increment, then as many with nothing new."""
    few = max(1, FEW // writer.peers)
    kinds = [("full", messages), *[("+1 %", more)] * often, *[(f"+{FEW}", few)] * often, *[("no change", 0)] * often]
    runs, hops = [], 0
    for kind, swarm in kinds:
        new = writer.seal(Shares(swarm, max(1, swarm // 20), max(3, swarm // 100))) if swarm else 0
        hops += new
        for follower in followers:
            run = {"run": name + kind, "who": follower.name, "new": new, "hops": hops, **follower.ask(root)}
            say_run(run)
            runs.append(run)
        followers.reverse()
    for follower in followers:
        say(f"{name}{follower.name}: {json.dumps(follower.ask(root, ask=True))}")
    return runs


def say_run(run: dict[str, Any]) -> None:
    """Print one run in two lines."""
    say(
        f"{run['run']:<14} {run['who']:<6} {run['new']:>9,} new of {run['hops']:>9,} hops {run['seconds']:>7.2f} s "
        f"{run['cpu_seconds']:>6.1f} s cpu {run['jobs']:>4} jobs {run['peak_mb']:>6,} MB"
    )
    slowest = sorted(run["steps"].items(), key=lambda step: -step[1][1])[:SLOWEST]
    say("    " + ", ".join(f"{step} {seconds}/{cpu}/{jobs}" for step, (seconds, cpu, jobs) in slowest))


def say_ratios(runs: list[dict[str, Any]], times: int) -> None:
    """Print the lesser of the runs of each kind beside that of the other revision, and of the smaller lake."""
    best: dict[tuple[str, str], dict[str, float]] = {}
    for run in runs:
        least = best.setdefault((run["run"], run["who"]), {"seconds": run["seconds"], "cpu_seconds": 1e9, "jobs": 1e9})
        for column in least:
            least[column] = min(least[column], run[column])
    pairs = [(f"{kind}, beside", own, best[kind, OTHER]) for (kind, who), own in best.items() if (kind, OTHER) in best]
    pairs = [pair for pair in pairs if pair[1] is not pair[2]]
    for (kind, who), own in best.items():
        if kind.startswith(f"{times}x +"):
            pairs.append((f"{kind}, {who}, beside the smaller lake", own, best[kind.removeprefix(f"{times}x "), who]))
    for name, one, other in pairs:
        ratios = (
            f"{column.removesuffix('_seconds')} {one[column]:g} / {other[column]:g} = "
            f"{one[column] / max(other[column], 0.01):.2f}"
            for column in one
        )
        say(f"{name}: {', '.join(ratios)}")


def say(text: str) -> None:
    """Print progress to stderr."""
    sys.stderr.write(text + "\n")


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", type=Path, metavar="DIR", help="a checkout of another revision, with its .venv")
    parser.add_argument("--messages", type=int, default=140_000)
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--times", type=int, default=0, help="how much larger the second lake is; none by default")
    parser.add_argument("--cold", action="store_true", help="measure in a session that has done nothing before")
    parser.add_argument("--once", action="store_true", help="one run of each kind, not two")
    parser.add_argument("--whole-below", type=int, default=SMALL_ROWS, help="hops up to which gold is always rebuilt")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--driver-memory", help="the size of Java's heap, instead of a share of the machine's memory")
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    arguments = parser.parse_args(argv)
    checkouts = [(OWN, Path(__file__).resolve().parents[1], sys.executable)]
    if arguments.beside is not None:
        other = arguments.beside.resolve()
        checkouts.append((OTHER, other, str(other / ".venv/bin/python")))
    options = [f"--threads={arguments.threads}", f"--whole-below={arguments.whole_below}"]
    options += [f"--driver-memory={arguments.driver_memory}"] if arguments.driver_memory else []
    followers = [Follower(*checkout, *options) for checkout in checkouts]
    runs: list[dict[str, Any]] = []
    lakes = [] if arguments.cold else [("warm ", min(WARM_MESSAGES, arguments.messages))]
    lakes.append(("", arguments.messages))
    if arguments.times:
        lakes.append((f"{arguments.times}x ", arguments.messages * arguments.times))
    form = MANIFEST_FORMAT if arguments.beside is None else SEALED_FORMAT
    for name, messages in lakes:
        with tempfile.TemporaryDirectory(prefix="bench-audit-", dir=arguments.dir) as root:
            writer = LakeWriter(Path(root) / "lake", arguments.threads, arguments.peers, form)
            more = min(messages, arguments.messages) // 100
            runs += measure(followers, Path(root), writer, messages, more, name, 1 if arguments.once else 2)
    for follower in followers:
        follower.end()
    say_ratios(runs, arguments.times)
    if arguments.json:
        arguments.json.write_text(json.dumps(runs, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
