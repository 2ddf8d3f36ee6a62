"""What the journal's writer spends its time on: CPU microseconds per delivery, by part, in one thread.

    python -m benchmarks.journal_cost [--deliveries N] [--dir DIR] [--json]

`pairs`: messages of 480 bytes with two hops each, 400 in a commit. `fan-out`: messages to 1,000 recipients, two in a
commit. Relaxed durability; a checkpoint after every 250 commits. `SQLite` is its part of all the others, with the
kernel's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.journal import RECIPIENTS, SERVER, fan_out, group
from benchmarks.scratch import Row, make_parser, print_rows
from dovetail import fast
from dovetail.journal.database import Connection, connect_writer
from dovetail.journal.writer import JournalWriter
from dovetail.model.hop import Observation, Stage
from dovetail.tlog.keys import Signer

PAIRS_A_COMMIT = 400
FANS_A_COMMIT = 2
COMMITS_A_CHECKPOINT = 250


class TimedConnection:
    """A connection that counts the CPU time spent in it."""

    def __init__(self, inner: Connection) -> None:
        self._inner = inner
        self.seconds = 0.0

    def _time(self, call: Callable[..., Any], *arguments: Any) -> Any:
        start = time.process_time()
        try:
            return call(*arguments)
        finally:
            self.seconds += time.process_time() - start

    def execute(self, *arguments: Any) -> Any:
        return self._time(self._inner.execute, *arguments)

    def executemany(self, *arguments: Any) -> Any:
        return self._time(self._inner.executemany, *arguments)

    def executescript(self, *arguments: Any) -> Any:
        return self._time(self._inner.executescript, *arguments)

    def close(self) -> None:
        self._inner.close()


def make_pairs() -> list[Observation]:
    made: list[Observation] = []
    for number, accepted in enumerate(group(PAIRS_A_COMMIT)):
        to = (RECIPIENTS[number % 40],)
        made += [
            accepted,
            Observation(at_us=accepted.at_us, stage=Stage.DELIVERED, message=accepted.message, counterparts=to),
        ]
    return made


def make_fans() -> list[Observation]:
    return [observation for _ in range(FANS_A_COMMIT) for observation in fan_out()]


def measure_workload(name: str, make: Callable[[], list[Observation]], each: int, total: int, path: Path) -> Row:
    connections: list[TimedConnection] = []

    def connect(path: Path) -> Connection:
        connections.append(TimedConnection(connect_writer(path)))
        return connections[-1]

    spent = dict.fromkeys(("commit", "hash", "index", "checkpoint"), 0.0)

    def timed(part: str, call: Callable[..., object], *arguments: object) -> None:
        start = time.process_time()
        call(*arguments)
        spent[part] += time.process_time() - start

    signer = Signer(SERVER, Ed25519PrivateKey.generate())
    with JournalWriter.open(path, server=SERVER, signer=signer, durability="relaxed", connect=connect) as writer:
        opened_s = connections[0].seconds
        for number in range(total // each):
            timed("commit", writer.commit, make())
            timed("hash", writer.grow)
            if writer.is_index_due:
                timed("index", writer.index)
            if number % COMMITS_A_CHECKPOINT == COMMITS_A_CHECKPOINT - 1:
                timed("checkpoint", writer.checkpoint)
        timed("checkpoint", writer.checkpoint)
    deliveries = total // each * each
    row: Row = {"workload": name, "fast": fast.IMPLEMENTATION}
    row |= {part: round(seconds / deliveries * 1e6, 2) for part, seconds in spent.items()}
    row["all"] = round(sum(spent.values()) / deliveries * 1e6, 2)
    row["SQLite"] = round((connections[0].seconds - opened_s) / deliveries * 1e6, 2)
    return row


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--deliveries", type=int, default=200_000)

    def measure(arguments: argparse.Namespace, directory: Path) -> Iterator[Row]:
        total = arguments.deliveries
        yield measure_workload("pairs", make_pairs, PAIRS_A_COMMIT, total, directory / "pairs.journal")
        yield measure_workload("fan-out", make_fans, FANS_A_COMMIT * 1000, 2 * total, directory / "fan.journal")

    return print_rows(parser, measure)


if __name__ == "__main__":
    sys.exit(main())
