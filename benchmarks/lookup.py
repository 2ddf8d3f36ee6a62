"""How long it takes to find one message in a lake and to build its receipt, with the indexes and without them.

    python -m benchmarks.lookup [--hops N] [--fan-out N] [--messages N] [--dir DIR] [--json]

One broker's journal of N hops, each message accepted once and delivered to some, is sealed into a lake. Then messages
from all over it are looked up, each by a source that was just opened, as `dovetail receipt build --lake` does.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.scratch import Row, make_parser, print_rows
from dovetail.journal.writer import JournalWriter
from dovetail.lake.layout import INDEXES
from dovetail.lake.reader import open_lake
from dovetail.lake.seal import seal_journal
from dovetail.lake.store import LocalStore
from dovetail.model.address import address_of
from dovetail.model.hop import Observation, Stage
from dovetail.receipt.build import build_receipt
from dovetail.receipt.sources import find_message
from dovetail.tlog.keys import Signer

T0 = 1_763_236_800_000_000
BROKER = "pcp://broker.example/server"
BATCH = 500
NAMES = tuple(f"pcp://host{i:05d}.example.com/agent" for i in range(5000))


def body(number: int) -> bytes:
    return b'{"number":%d,"data":"%s"}' % (number, address_of(b"%d" % number).hex().encode())


def write_lake(directory: Path, hops: int, fan_out: int) -> tuple[Path, int]:
    """The lake, and how many messages it has."""
    chance = random.Random(1)
    signer = Signer(BROKER, Ed25519PrivateKey.from_private_bytes(address_of(BROKER.encode())))
    path, lake, count = directory / "broker.journal", directory / "lake", hops // (fan_out + 1)
    with JournalWriter.open(path, server=BROKER, signer=signer, durability="relaxed") as writer:
        for start in range(0, count, BATCH):
            observations = []
            for number in range(start, min(start + BATCH, count)):
                raw = body(number)
                address, at_us = address_of(raw), T0 + number * 100
                whom = tuple(chance.sample(NAMES, fan_out))
                observations += [
                    Observation(
                        at_us=at_us,
                        stage=Stage.ACCEPTED,
                        message=address,
                        counterparts=(chance.choice(NAMES),),
                        raw=raw,
                    ),
                    Observation(at_us=at_us + 50, stage=Stage.DELIVERED, message=address, counterparts=whom),
                ]
            writer.append(observations)
        writer.checkpoint()
    seal_journal(path, LocalStore(lake))
    path.unlink()
    return lake, count


def measure(lake: Path, numbers: list[int]) -> dict[str, float]:
    """Medians in milliseconds."""
    found, built = [], []
    for number in numbers:
        address = address_of(body(number))
        start = time.perf_counter()
        sources = open_lake(LocalStore(lake))
        find_message(sources, address.hex())
        middle = time.perf_counter()
        build_receipt(sources, address)
        built.append(time.perf_counter() - start)
        found.append(middle - start)
    return {"find ms": _milliseconds(found), "find and build ms": _milliseconds(built)}


def _milliseconds(times: list[float]) -> float:
    return round(statistics.median(times) * 1000, 1)


def run(arguments: argparse.Namespace, directory: Path) -> Iterator[Row]:
    lake, count = write_lake(directory, arguments.hops, arguments.fan_out)
    numbers = random.Random(2).sample(range(count), arguments.messages)
    sizes = {
        "lake bytes": sum(path.stat().st_size for path in lake.glob("fabric=*/date=*/*.parquet")),
        "index bytes": sum(path.stat().st_size for path in lake.glob(f"{INDEXES}/*/*.index")),
    }
    for name in ("with indexes", "without"):
        if name == "without":
            shutil.rmtree(lake / INDEXES)
        yield {"lookup": name, "hops": arguments.hops, "messages": count, **sizes, **measure(lake, numbers)}


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--hops", type=int, default=200_000, help="how many hops the lake has")
    parser.add_argument("--fan-out", type=int, default=3, help="recipients of each message")
    parser.add_argument("--messages", type=int, default=9, help="how many messages are looked up")
    return print_rows(parser, run)


if __name__ == "__main__":
    sys.exit(main())
