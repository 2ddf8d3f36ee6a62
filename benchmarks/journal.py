"""How many hops a second the journal keeps, beside the floor: the same bytes written plainly to the same disk.

    python -m benchmarks.journal [--seconds S] [--rounds N] [--dir DIR] [--json]

Floor and journal take turns within every round, so that a noisy machine is noisy for both; medians over the rounds are
printed. `singly`: one hop with its message in each append. `groups of 100`: a hundred. `fan-out`: one message, accepted
once and delivered to 1,000 recipients, in one append. Every append is fsynced before the next begins. `groups of 100,
8 callers`: through the shared journal, as a server uses it; every caller waits for the fsync of its hundred before the
next hundred, and those that wait at the same time share a commit. The floor stays one fsync for each hundred.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.scratch import make_parser, print_rows
from dovetail.hop import Observation, Stage, address_of
from dovetail.journal.journal import Journal, JournalOptions
from dovetail.journal.layout import encode_runs, pack_names
from dovetail.journal.tree import JournalTree
from dovetail.journal.writer import JournalWriter
from dovetail.signing import Signer

SERVER = "pcp://broker.example/server"
MESSAGE_BYTES = 480
RECIPIENTS = tuple(f"pcp://host{i:05d}.example.com/agent" for i in range(1000))
CALLERS = 8
_HOT_FAN_OUTS = 300
_PREPARED_GROUPS = 1000
_HOP_BYTES = len(encode_runs([(1, 2, 0, 100, 1)]))


@dataclass(frozen=True)
class Workload:
    """Appends of one shape: what is appended each time, how many hops that is, and the plain bytes of it."""

    name: str
    hops: int
    plain_bytes: int
    make: Callable[[], list[Observation]]


def message() -> bytes:
    return os.urandom(MESSAGE_BYTES)


def group(size: int) -> list[Observation]:
    now_us = time.time_ns() // 1000
    made = []
    for _ in range(size):
        raw = message()
        made.append(
            Observation(
                at_us=now_us, stage=Stage.ACCEPTED, message=address_of(raw), counterparts=RECIPIENTS[:1], raw=raw
            )
        )
    return made


def fan_out() -> list[Observation]:
    (accepted,) = group(1)
    delivered = Observation(
        at_us=accepted.at_us, stage=Stage.DELIVERED, message=accepted.message, counterparts=RECIPIENTS
    )
    return [accepted, delivered]


GROUPS = Workload("groups of 100", 100, 100 * (MESSAGE_BYTES + 32 + _HOP_BYTES), lambda: group(100))
WORKLOADS = (
    Workload("singly", 1, MESSAGE_BYTES + 32 + _HOP_BYTES, lambda: group(1)),
    GROUPS,
    Workload(
        "fan-out 1:1000",
        1001,
        MESSAGE_BYTES + 32 + len(encode_runs([(1, 4, 0, 0, pack_names(list(range(1000))))])),
        fan_out,
    ),
)


def measure_floor(workload: Workload, directory: Path, seconds: float) -> float:
    """Hops a second when the same bytes are appended to a plain file and fsynced in the same groups."""
    data = os.urandom(workload.plain_bytes)
    path = directory / "floor"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        groups, start = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds:
            os.write(descriptor, data)
            os.fsync(descriptor)
            groups += 1
        return groups * workload.hops / elapsed
    finally:
        os.close(descriptor)
        path.unlink()


def measure_journal(workload: Workload, directory: Path, seconds: float, signer: Signer) -> dict[str, float]:
    """Hops a second and CPU per hop of a journal that is fsynced at each append, hashing left for later and timed."""
    path = directory / "bench.journal"
    with JournalWriter.open(path, server=SERVER, signer=signer) as writer:
        writer.append(workload.make())
        hops, spent, cpu = 0, 0.0, 0.0
        while spent < seconds:
            batch = workload.make()
            wall_start, cpu_start = time.perf_counter(), time.process_time()
            writer.append(batch)
            spent += time.perf_counter() - wall_start
            cpu += time.process_time() - cpu_start
            hops += workload.hops
        hashed = min(writer.size, 200_000)
        start = time.process_time()
        for _ in JournalTree(writer.reader).leaf_hashes(0, hashed):
            pass
        hashing = time.process_time() - start
    for leftover in directory.glob("bench.journal*"):
        leftover.unlink()
    return {"rate": hops / spent, "cpu_us": cpu / hops * 1e6, "hash_us": hashing / hashed * 1e6}


def measure_callers(directory: Path, seconds: float, signer: Signer) -> dict[str, float]:
    """Hops a second of callers that share one journal, each with a hundred hops under way."""
    path = directory / "shared.journal"
    options = JournalOptions(checkpoint_interval_s=3600)
    hops, spent, cpu = 0, 0.0, 0.0

    async def call(journal: Journal, groups: Iterator[list[Observation]]) -> None:
        for observations in groups:
            await journal.append_async(observations)

    async def share(journal: Journal, groups: Iterator[list[Observation]]) -> None:
        await asyncio.gather(*[call(journal, groups) for _ in range(CALLERS)])

    with Journal.open(path, server=SERVER, signer=signer, options=options) as journal:
        while spent < seconds:
            prepared = [group(100) for _ in range(_PREPARED_GROUPS)]
            wall_start, cpu_start = time.perf_counter(), time.process_time()
            asyncio.run(share(journal, iter(prepared)))
            spent += time.perf_counter() - wall_start
            cpu += time.process_time() - cpu_start
            hops += 100 * len(prepared)
    for leftover in directory.glob("shared.journal*"):
        leftover.unlink()
    return {"rate": hops / spent, "cpu_us": cpu / hops * 1e6}


def measure_hot_path(directory: Path, signer: Signer) -> float:
    """CPU microseconds per hop that the caller's own thread pays for a fan-out with relaxed durability."""
    path = directory / "hot.journal"
    options = JournalOptions(durability="relaxed", max_queue_bytes=1 << 30, checkpoint_interval_s=3600)
    with Journal.open(path, server=SERVER, signer=signer, options=options) as journal:
        hops, cpu = 0, 0.0
        for number in range(_HOT_FAN_OUTS):
            batch = fan_out()
            start = time.thread_time()
            journal.write(batch)
            cpu += time.thread_time() - start
            hops += 1001
            if number % 50 == 0:
                journal.flush()
    for leftover in directory.glob("hot.journal*"):
        leftover.unlink()
    return cpu / hops * 1e6


def compare(name: str, floors: list[float], journals: list[dict[str, float]]) -> dict[str, object]:
    """One line of the result: medians over the rounds."""
    medians = {key: statistics.median(each[key] for each in journals) for key in journals[0]}
    floor = statistics.median(floors)
    row: dict[str, object] = {
        "workload": name,
        "hops/s": round(medians["rate"]),
        "floor hops/s": round(floor),
        "of the floor": round(medians["rate"] / floor, 2),
        "CPU us/hop": round(medians["cpu_us"], 3),
    }
    if "hash_us" in medians:
        row["hashing us/hop, off the hot path"] = round(medians["hash_us"], 2)
    return row


def run(seconds: float, rounds: int, directory: Path) -> Iterator[dict[str, object]]:
    signer = Signer(SERVER, Ed25519PrivateKey.generate())
    for workload in WORKLOADS:
        floors, journals, shared = [], [], []
        for _ in range(rounds):
            floors.append(measure_floor(workload, directory, seconds))
            journals.append(measure_journal(workload, directory, seconds, signer))
            if workload is GROUPS:
                shared.append(measure_callers(directory, seconds, signer))
        yield compare(workload.name, floors, journals)
        if shared:
            yield compare(f"{workload.name}, {CALLERS} callers", floors, shared)
    yield {
        "workload": "fan-out, caller's thread",
        "CPU us/hop": round(statistics.median(measure_hot_path(directory, signer) for _ in range(rounds)), 4),
    }


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each measurement takes")
    parser.add_argument("--rounds", type=int, default=5)
    return print_rows(parser, lambda arguments, directory: run(arguments.seconds, arguments.rounds, directory))


if __name__ == "__main__":
    sys.exit(main())
