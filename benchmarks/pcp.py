"""What a delivered message costs the broker, beside peers over WebSocket in the same interleaved rounds.

    python -m benchmarks.pcp [--rounds N] [--seconds S] [--workloads a1,b4] [--loop asyncio|uvloop]
                             [--connections N] [--no-journal] [--alone] [--json]

Server CPU microseconds per delivered message of about 480 bytes; no message has the bytes of another. Ours runs as an
operator would: authorisation by rules, metrics and the journal on (relaxed durability, its default). What the journal
does later for the messages of a run, up to the next signed checkpoint, is waited for and counted. Beside it: mosquitto
and NATS, which keep nothing, and NATS with a JetStream file stream over all subjects, which keeps every message. Then
the promise that nothing acknowledged is lost: ours with durability `full`, which delivers after the fsync, beside
JetStream with `sync_interval: always`, whose senders wait for the stream's answer too.

The load comes from benchmarks/pcp_load.c, which needs gcc; peers take part where they are installed. Workloads: a1, 100
pairs with one message under way each; a32, 20 pairs with 32; b1, one sender to 1,000 receivers by a wildcard, one
message under way; b4, four. Every step has a time limit; messages that never arrive are reported as lost. Memory is
that of a fresh process with all connections open.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from operator import truediv
from pathlib import Path

from benchmarks.pcp_servers import (
    BenchmarkFailed,
    Load,
    Run,
    Server,
    compile_load,
    start_dovetail,
    start_mosquitto,
    start_nats,
)
from benchmarks.scratch import describe_rounds

MESSAGE_BYTES = 480
PAUSE_SECONDS = 0.3  # until the server sees that the load has disconnected
WORKLOADS = {"a1": ("pairs", 100, 1), "a32": ("pairs", 20, 32), "b1": ("fan", 1000, 1), "b4": ("fan", 1000, 4)}
REACH = {
    "a1": {"jetstream": 1.3, "mosquitto": 2.9},
    "a32": {"jetstream": 2.3, "mosquitto": 2.2},
    "b1": {"jetstream": 0.65, "mosquitto": 0.75},
    "b4": {"jetstream": 0.65, "mosquitto": 0.35},
}
"""The target: our cost as a multiple of the peer's, at most."""

Row = dict[str, object]


class Measured:
    """The rounds of one server under one workload."""

    def __init__(self) -> None:
        self.costs_us: list[float] = []
        self.main_thread_us: list[float] = []
        self.rates: list[float] = []
        self.lost = 0
        self.failure = ""

    def add(self, done: Run, used_s: float, used_main_s: float) -> None:
        """One round: CPU microseconds per delivery, and deliveries a second."""
        self.lost += done.lost
        if done.deliveries:
            self.costs_us.append(used_s / done.deliveries * 1e6)
            self.main_thread_us.append(used_main_s / done.deliveries * 1e6)
            self.rates.append(done.deliveries / done.elapsed_s)


def describe(workload: str, measured: dict[str, Measured]) -> Row:
    """One line of the result: medians over the rounds, ours first."""
    row: Row = {"workload": workload}
    own = next(iter(measured))
    ours = measured[own]
    for name, rounds in measured.items():
        if rounds.costs_us:
            cost = statistics.median(rounds.costs_us)
            row[f"{name} us"] = round(cost, 2)
            row[f"{name} messages/s"] = round(statistics.median(rounds.rates))
            if name == own:
                row["without journal threads us"] = round(statistics.median(rounds.main_thread_us), 2)
            elif ours.costs_us:
                row[f"of {name}"] = round(statistics.median(ours.costs_us) / cost, 2)
                if len(rounds.costs_us) == len(ours.costs_us):  # neither missed a round
                    row[f"of {name}, by round"] = describe_rounds(map(truediv, ours.costs_us, rounds.costs_us))
                row[f"rate of {name}"] = round(statistics.median(ours.rates) / statistics.median(rounds.rates), 2)
                if name in REACH[workload]:
                    row[f"reach {name}"] = REACH[workload][name]
        if rounds.lost:
            row[f"{name} lost"] = rounds.lost
        if rounds.failure:
            row[f"{name} failed"] = rounds.failure
    return row


def compare(
    program: Path, servers: list[Server], workloads: list[str], rounds: int, seconds: float, show: Callable[[Row], None]
) -> None:
    for workload in workloads:
        measured = {server.name: Measured() for server in servers}
        for _ in range(rounds):
            run_round(program, servers, workload, seconds, measured)
        show(describe(workload, measured))


def run_round(
    program: Path, servers: list[Server], workload: str, seconds: float, measured: dict[str, Measured]
) -> None:
    """Run every server once, after warming up all; the round ends when each has finished its deferred work."""
    loads: list[tuple[Server, Load]] = []
    runs: list[tuple[Server, Run, float, float]] = []
    try:
        for server in servers:
            if server.stream is not None:
                server.stream.purge()
            try:
                load = Load(program, server, *WORKLOADS[workload], MESSAGE_BYTES)
                loads.append((server, load))
                load.run(seconds / 4)
                server.ran()
                if server.stream is not None:
                    server.stream.check()
            except BenchmarkFailed as error:
                measured[server.name].failure = str(error)
        for server in servers:
            server.settle()
        for server, load in loads:
            before, before_main = server.cpu_seconds(), server.cpu_seconds(of_main_thread=True)
            try:
                runs.append((server, load.run(seconds), before, before_main))
            except BenchmarkFailed as error:
                measured[server.name].failure = str(error)
            server.ran()
        for server, done, before, before_main in runs:
            server.settle()
            used_main = server.cpu_seconds(of_main_thread=True) - before_main
            measured[server.name].add(done, server.cpu_seconds() - before, used_main)
    finally:
        for _, load in loads:
            load.close()
        time.sleep(PAUSE_SECONDS)


def compare_memory(program: Path, servers: list[Server], count: int, show: Callable[[Row], None]) -> None:
    for server in servers:
        row: Row = {"workload": f"{count} connections", "server": server.name}
        before = server.resident_bytes()
        try:
            load = Load(program, server, "hold", count, 1, MESSAGE_BYTES)
            time.sleep(1)
            row["KiB a connection"] = round((server.resident_bytes() - before) / count / 1024, 1)
            load.close()
        except BenchmarkFailed as error:
            row["failed"] = str(error)
        show(row)


def start_relaxed(directory: Path, loop: str, *, keeps_journal: bool, alone: bool) -> Iterator[Server | None]:
    yield start_dovetail(directory, loop, keeps_journal=keeps_journal)
    if alone:
        return
    yield start_mosquitto(directory)
    yield start_nats(directory)
    yield start_nats(directory, jetstream=True)


def start_full(directory: Path, loop: str) -> Iterator[Server | None]:
    yield start_dovetail(directory, loop, durability="full")
    yield start_nats(directory, jetstream=True, syncs_always=True)


@contextmanager
def running(starting: Iterable[Server | None]) -> Iterator[list[Server]]:
    """Those servers of a comparison that are installed."""
    servers: list[Server] = []
    try:
        servers.extend(server for server in starting if server is not None)
        yield servers
    finally:
        stop_all(servers)


def stop_all(servers: list[Server]) -> None:
    while servers:
        servers.pop().stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="which, separated by commas")
    parser.add_argument("--loop", default="uvloop", choices=["asyncio", "uvloop"])
    parser.add_argument("--no-journal", dest="journal", action="store_false", help="what is left without it")
    parser.add_argument("--connections", type=int, default=10_000, help="held for the memory measurement; 0: none")
    parser.add_argument("--alone", action="store_true", help="without peers, and without durability full")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    arguments = parser.parse_args()
    workloads = [name for name in arguments.workloads.split(",") if name]
    if unknown := set(workloads) - set(WORKLOADS):
        parser.error(f"no workload {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")

    def show(row: Row) -> None:
        print(json.dumps(row) if arguments.json else ", ".join(f"{k}: {v}" for k, v in row.items()), flush=True)

    directory = Path(tempfile.mkdtemp(prefix="bench-pcp-"))

    def measure_relaxed() -> None:
        with running(start_relaxed(directory, arguments.loop, **relaxed)) as servers:
            tell_absent(set() if arguments.alone else {"mosquitto", "nats", "jetstream"}, servers)
            compare(program, servers, workloads, arguments.rounds, arguments.seconds, show)

    def measure_full() -> None:
        if arguments.journal and workloads and not arguments.alone:
            with running(start_full(directory, arguments.loop)) as servers:
                tell_absent({"jetstream always"}, servers)
                compare(program, servers, workloads, arguments.rounds, arguments.seconds, show)

    def measure_memory() -> None:
        if arguments.connections:
            with running(start_relaxed(directory, arguments.loop, **relaxed)) as servers:
                compare_memory(program, servers, arguments.connections, show)

    failures = 0
    relaxed = {"keeps_journal": arguments.journal, "alone": arguments.alone}
    try:
        program = compile_load(directory)
        for measure in (measure_relaxed, measure_full, measure_memory):
            try:
                measure()
            except BenchmarkFailed as error:
                print(f"bench-pcp: {error}", file=sys.stderr)
                failures += 1
    except BenchmarkFailed as error:
        print(f"bench-pcp: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return 1 if failures else 0


def tell_absent(peers: set[str], servers: list[Server]) -> None:
    absent = peers - {server.name for server in servers}
    if absent:
        print(f"not installed, or too old, so not compared: {', '.join(sorted(absent))}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
