"""How many hops a second the journal keeps, beside the floor: the same bytes written plainly to the same disk.

    python -m benchmarks.journal [--seconds S] [--rounds N] [--floors] [--dir DIR] [--json]

Both get new messages for each append, made while no clock runs, and both fsync before the next. The floor is one write
to a plain file of what the append says: addresses, messages, hops. They take turns, a tenth of a second each, so that a
noisy machine is noisy for both; medians over the rounds are printed. `back to back` is the floor with nothing between:
one prepared buffer, written again and again.

`singly`: one hop with its message in each append. `groups of 100`: a hundred. `fan-out`: one message, accepted once and
delivered to 1,000 recipients, in one append. `groups of 100, 8 callers`: through the shared journal, as a server uses
it; every caller waits for the fsync of its hundred before the next hundred, and those that wait at the same time share
a commit. The floor stays one fsync for each hundred. `--floors` tells instead what the floor of such groups depends on.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.scratch import describe_rounds, make_parser, print_rows
from dovetail.journal.journal import Journal, JournalOptions
from dovetail.journal.layout import encode_runs, pack_names
from dovetail.journal.writer import JournalWriter
from dovetail.model.address import address_of
from dovetail.model.errors import JournalError
from dovetail.model.hop import Observation, Stage
from dovetail.tlog.keys import Signer

SERVER = "pcp://broker.example/server"
MESSAGE_BYTES = 480
RECIPIENTS = tuple(f"pcp://host{i:05d}.example.com/agent" for i in range(1000))
CALLERS = 8
_HOT_FAN_OUTS = 300
_TURN_S = 0.1
_TURN_GROUPS = 200


@dataclass(frozen=True)
class Workload:
    """Appends of one shape: what is appended each time, how many hops that is, and the bytes of its runs."""

    name: str
    hops: int
    runs: bytes
    make: Callable[[], list[Observation]]

    def plain(self, batch: list[Observation]) -> bytes:
        """The bytes with the same content: addresses, messages, hops."""
        return b"".join([each.message + each.raw for each in batch if each.raw is not None]) + self.runs


@dataclass(slots=True)
class Meter:
    """What appends took: wall time and CPU time."""

    workload: Workload
    groups: int = 0
    spent: float = 0.0
    cpu: float = 0.0

    def add(self, call: Callable[..., object], *arguments: object, groups: int = 1) -> None:
        """Measure one call, which appends one group or several."""
        wall_start, cpu_start = time.perf_counter(), time.process_time()
        call(*arguments)
        self.spent += time.perf_counter() - wall_start
        self.cpu += time.process_time() - cpu_start
        self.groups += groups

    @property
    def rate(self) -> float:
        """Hops per second."""
        return self.groups * self.workload.hops / self.spent

    @property
    def cpu_us(self) -> float:
        """CPU microseconds per hop."""
        return self.cpu / (self.groups * self.workload.hops) * 1e6


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


GROUPS = Workload("groups of 100", 100, encode_runs([(1, 2, 0, 100, 1)] * 100), lambda: group(100))
WORKLOADS = (
    Workload("singly", 1, encode_runs([(1, 2, 0, 100, 1)]), lambda: group(1)),
    GROUPS,
    Workload("fan-out 1:1000", 1001, encode_runs([(1, 4, 0, 0, pack_names(list(range(1000))))]), fan_out),
)


def write_plainly(descriptor: int, data: bytes) -> None:
    """What the floor does: one write and its fsync."""
    os.write(descriptor, data)
    os.fsync(descriptor)


def measure_in_turns(workload: Workload, directory: Path, seconds: float, signer: Signer) -> dict[str, float]:
    """The journal and the floor, each for `seconds`; the journal hashes and indexes inside its own time."""
    path = directory / "bench.journal"
    floor, journal, back_to_back = Meter(workload), Meter(workload), Meter(workload)
    data = workload.plain(workload.make())
    with _plain_file(directory) as descriptor:
        while back_to_back.spent < seconds:
            back_to_back.add(write_plainly, descriptor, data)
    with _plain_file(directory) as descriptor, JournalWriter.open(path, server=SERVER, signer=signer) as writer:
        writer.append(workload.make())
        while min(floor.spent, journal.spent) < seconds:
            end = floor.spent + _TURN_S
            while floor.spent < end:
                floor.add(write_plainly, descriptor, workload.plain(workload.make()))
            end = journal.spent + _TURN_S
            while journal.spent < end:
                journal.add(writer.append, workload.make())
    for leftover in directory.glob("bench.journal*"):
        leftover.unlink()
    return {
        "rate": journal.rate,
        "floor": floor.rate,
        "back to back": back_to_back.rate,
        "cpu_us": journal.cpu_us,
    }


def measure_callers(directory: Path, seconds: float, signer: Signer) -> dict[str, float]:
    """Hops a second of callers that share one journal, each with a hundred hops under way, and the floor beside."""
    path = directory / "shared.journal"
    options = JournalOptions(checkpoint_interval_s=3600)
    floor, journal = Meter(GROUPS), Meter(GROUPS)

    async def append(shared: Journal, observations: list[Observation]) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[JournalError | None] = loop.create_future()

        def tell(error: JournalError | None) -> None:
            loop.call_soon_threadsafe(done.set_result, error)

        shared.commit(observations, tell)
        if (error := await done) is not None:
            raise error

    async def call(shared: Journal, groups: Iterator[list[Observation]]) -> None:
        for observations in groups:
            await append(shared, observations)

    async def call_all(shared: Journal, groups: Iterator[list[Observation]]) -> None:
        await asyncio.gather(*[call(shared, groups) for _ in range(CALLERS)])

    def share(shared: Journal, groups: list[list[Observation]]) -> None:
        asyncio.run(call_all(shared, iter(groups)))

    with _plain_file(directory) as descriptor, Journal.open(path, server=SERVER, signer=signer, options=options) as it:
        while min(floor.spent, journal.spent) < seconds:
            for _ in range(_TURN_GROUPS):
                floor.add(write_plainly, descriptor, GROUPS.plain(GROUPS.make()))
            journal.add(share, it, [GROUPS.make() for _ in range(_TURN_GROUPS)], groups=_TURN_GROUPS)
    for leftover in directory.glob("shared.journal*"):
        leftover.unlink()
    return {"rate": journal.rate, "floor": floor.rate, "cpu_us": journal.cpu_us}


def measure_floors(directory: Path, seconds: float, signer: Signer) -> Iterator[dict[str, object]]:
    """What the work between two groups, their bytes, and a journal's turn before it do to the floor: medians."""
    prepared = GROUPS.plain(GROUPS.make())
    floors: dict[str, tuple[Callable[[], bytes], list[float]]] = {
        "new bytes, after the journal's turn": (lambda: GROUPS.plain(GROUPS.make()), []),
        "new bytes, later": (lambda: GROUPS.plain(GROUPS.make()), []),
        "one buffer, messages made between": (lambda: GROUPS.plain(GROUPS.make()) and prepared, []),
        "one buffer, back to back": (lambda: prepared, []),
    }
    path = directory / "bench.journal"
    with _plain_file(directory) as descriptor, JournalWriter.open(path, server=SERVER, signer=signer) as writer:
        end = time.perf_counter() + seconds * (len(floors) + 1)
        while time.perf_counter() < end:
            turn = time.perf_counter() + _TURN_S
            while time.perf_counter() < turn:
                writer.append(GROUPS.make())
            for make, took in floors.values():
                turn = time.perf_counter() + _TURN_S
                while time.perf_counter() < turn:
                    data = make()
                    start = time.perf_counter()
                    write_plainly(descriptor, data)
                    took.append(time.perf_counter() - start)
    for name, (_, took) in floors.items():
        yield {"floor": name, "us": round(statistics.median(took) * 1e6), "groups": len(took)}


def measure_hot_path(directory: Path, signer: Signer) -> float:
    """CPU microseconds per hop that the caller's own thread pays for a fan-out with relaxed durability."""
    path = directory / "hot.journal"
    options = JournalOptions(durability="relaxed", max_queue_bytes=1 << 30, checkpoint_interval_s=3600)
    with Journal.open(path, server=SERVER, signer=signer, options=options) as journal:
        hops, cpu = 0, 0.0
        for number in range(_HOT_FAN_OUTS):
            batch = fan_out()
            start = time.thread_time()
            journal.commit(batch, lambda _: None)
            cpu += time.thread_time() - start
            hops += 1001
            if number % 50 == 0:
                journal.flush()
    for leftover in directory.glob("hot.journal*"):
        leftover.unlink()
    return cpu / hops * 1e6


@contextmanager
def _plain_file(directory: Path) -> Iterator[int]:
    path = directory / "floor"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
        path.unlink()


def compare(name: str, measured: list[dict[str, float]]) -> dict[str, object]:
    """One line of the result: medians over the rounds."""
    medians = {key: statistics.median(each[key] for each in measured) for key in measured[0]}
    row: dict[str, object] = {
        "workload": name,
        "hops/s": round(medians["rate"]),
        "floor hops/s": round(medians["floor"]),
        "of the floor": round(statistics.median(each["rate"] / each["floor"] for each in measured), 2),
        "by round": describe_rounds(each["rate"] / each["floor"] for each in measured),
        "CPU us/hop": round(medians["cpu_us"], 3),
    }
    if "back to back" in medians:
        row["floor back to back hops/s"] = round(medians["back to back"])
    return row


def run(seconds: float, rounds: int, directory: Path, signer: Signer) -> Iterator[dict[str, object]]:
    for workload in WORKLOADS:
        yield compare(workload.name, [measure_in_turns(workload, directory, seconds, signer) for _ in range(rounds)])
    yield compare(
        f"{GROUPS.name}, {CALLERS} callers", [measure_callers(directory, seconds, signer) for _ in range(rounds)]
    )
    yield {
        "workload": "fan-out, caller's thread",
        "CPU us/hop": round(statistics.median(measure_hot_path(directory, signer) for _ in range(rounds)), 4),
    }


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each measurement takes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--floors", action="store_true", help="only what the floor depends on")

    def measure(arguments: argparse.Namespace, directory: Path) -> Iterator[dict[str, object]]:
        signer = Signer(SERVER, Ed25519PrivateKey.generate())
        if arguments.floors:
            return measure_floors(directory, arguments.seconds, signer)
        return run(arguments.seconds, arguments.rounds, directory, signer)

    return print_rows(parser, measure)


if __name__ == "__main__":
    sys.exit(main())
