"""What admitted clients do to others: round trips of an honest client beside them, and the time that a stop takes.

    python -m benchmarks.pcp_admitted [--seconds S] [--only NAME] [--json]

Each attack is on a fresh broker with TLS, client certificates and a journal; each client is a process of its own
(`benchmarks.pcp_hostile_clients`). `median s` and `longest s` are round trips of the honest client, `peak MiB` the most
that the broker's resident set was, `SIGTERM s` how long the broker takes to stop while the attack goes on.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.pcp_hostile import Site, resident_mib
from benchmarks.scratch import Row, make_parser, print_rows

ATTACKS = {
    "none": [],
    "one that sends to nobody as fast as it can": ["flood"],
    "four of them": ["flood"] * 4,
    "two that send rubbish": ["rubbish"] * 2,
    "50 that do not read": ["deaf"],
}
STOP_LIMIT_S = 60.0


def start(kind: str, site: Site, port: int, seconds: float) -> subprocess.Popen[str]:
    """A client of this kind, as a process."""
    command = [sys.executable, "-m", "benchmarks.pcp_hostile_clients", kind, str(site.directory), str(port)]
    return subprocess.Popen([*command, str(seconds)], stdout=subprocess.PIPE, text=True)


def measure(site: Site, kinds: list[str], seconds: float, journal: Path) -> Row:
    """Run one attack and return its figures."""
    with site.broker("--journal", str(journal)) as (broker, port):
        attackers = [start(kind, site, port, seconds + STOP_LIMIT_S) for kind in kinds]
        try:
            honest = start("honest", site, port, seconds)
            peak = 0.0
            while honest.poll() is None:
                peak = max(peak, resident_mib(broker.pid))
                time.sleep(0.05)
            assert honest.stdout is not None
            waits = json.loads(honest.stdout.read())
            began = time.monotonic()
            broker.send_signal(signal.SIGTERM)
            broker.wait(STOP_LIMIT_S)
            stopped_s = time.monotonic() - began
        finally:
            for attacker in attackers:
                attacker.kill()
                attacker.communicate()
    return {
        "median s": round(waits["median"], 4),
        "longest s": round(waits["longest"], 3),
        "peak MiB": round(peak, 1),
        "SIGTERM s": round(stopped_s, 2),
    }


def measure_all(arguments: argparse.Namespace, directory: Path) -> Iterator[Row]:
    site = Site(directory)
    for number, (name, kinds) in enumerate(ATTACKS.items()):
        if arguments.only in name:
            yield {"attack": name, **measure(site, kinds, arguments.seconds, directory / f"{number}.db")}


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="how long each attack lasts")
    parser.add_argument("--only", default="", help="attacks whose name has this in it")
    return print_rows(parser, measure_all)


if __name__ == "__main__":
    sys.exit(main())
