"""How many hops a second `journal verify` checks, and what that costs: one journal of messages with two hops each.

    python -m benchmarks.verify [--messages N] [--rounds N] [--dir DIR] [--json]

Messages of 480 bytes in commits of 200, as a broker's journal has them; everything is signed and indexed. CPU is that
of all threads. Medians over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.journal import RECIPIENTS, SERVER, group
from benchmarks.scratch import Row, make_parser, print_rows
from dovetail import fast
from dovetail.journal.verify import verify_journal
from dovetail.journal.writer import JournalWriter
from dovetail.model.hop import Observation, Stage
from dovetail.tlog.keys import Signer

COMMIT_MESSAGES = 200


def write_journal(path: Path, messages: int) -> None:
    signer = Signer(SERVER, Ed25519PrivateKey.generate())
    with JournalWriter.open(path, server=SERVER, signer=signer, durability="relaxed") as writer:
        for start in range(0, messages, COMMIT_MESSAGES):
            batch: list[Observation] = []
            for accepted in group(min(COMMIT_MESSAGES, messages - start)):
                to = RECIPIENTS[len(batch) % 100]
                delivered = Observation(
                    at_us=accepted.at_us, stage=Stage.DELIVERED, message=accepted.message, counterparts=(to,)
                )
                batch += [accepted, delivered]
            writer.append(batch)
        writer.index()
        writer.checkpoint()


def measure(arguments: argparse.Namespace, directory: Path) -> Iterator[Row]:
    path = directory / "bench.journal"
    write_journal(path, arguments.messages)
    rates, costs = [], []
    for _ in range(arguments.rounds):
        wall, cpu = time.perf_counter(), time.process_time()
        verdict = verify_journal(path)
        rates.append(verdict.hops / (time.perf_counter() - wall))
        costs.append((time.process_time() - cpu) / verdict.hops * 1e6)
        assert verdict.is_intact, verdict.first
    yield {
        "workload": f"verify, {arguments.messages} messages",
        "fast": fast.IMPLEMENTATION,
        "hops/s": round(statistics.median(rates)),
        "CPU us/hop": round(statistics.median(costs), 2),
    }


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    return print_rows(parser, measure)


if __name__ == "__main__":
    sys.exit(main())
