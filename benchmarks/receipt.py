"""How large receipts are and how many a second are verified, beside the floor: what cannot be left out.

    python -m benchmarks.receipt [--hops N] [--apart N] [--seconds S] [--dir DIR] [--json]

It fails where a receipt has 30,000 bytes or more.

Each journal has N hops; the hops of the measured message lie in its middle, `--apart` other hops from each other, as on
a busy server. pcp: one broker, three recipients. won: m, s1 and s2 at two nodes. swarm: one message at three peers. The
floor is the time that checking the Ed25519 signatures of the checkpoints takes and, for won, reading the messages as
RDF, sorting and hashing them; both are measured in turn with the receipts. A checkpoint that was met before is not
checked again: so there is a rate with new checkpoints only, and one with known ones, as when many receipts of one
journal are verified. Rates are per second of CPU, and those of the best 20 in a row, so that others on the machine,
who take caches and half of a core, count as little as they can.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.scratch import Row, make_parser, print_rows
from dovetail.journal.source import JournalSource
from dovetail.journal.writer import JournalWriter
from dovetail.model.address import Address, address_of
from dovetail.model.hop import Observation, Stage
from dovetail.receipt.build import build_receipt
from dovetail.receipt.verify import verify_receipt
from dovetail.tlog.keys import Signer, Verifier
from dovetail.tlog.note import check_signatures
from dovetail.won import compose
from dovetail.won.canonical import digest_of, read_lines
from dovetail.won.message import Message
from dovetail.won.signing import SigningKey
from dovetail.won.vocabulary import Direction, MessageType

MAX_BYTES = 30_000
BLOCK = 20
"""How many receipts are verified in a row; the best of all such blocks counts."""
T0 = 1_763_236_800_000_000
BROKER = "pcp://broker.example/server"
NODE_A, NODE_B = "https://a.example/won/resource", "https://b.example/won/resource"
ALICE, BOB = f"{NODE_A}/atom/5f0c2e7f9a", f"{NODE_B}/atom/c81d4e2b73"
PEERS = ("swarm://harbour/amber", "swarm://harbour/birch", "swarm://harbour/coral")
FILLERS = tuple(f"pcp://host{i:05d}.example.com/agent" for i in range(1000))

World = dict[str, list[Observation]]


def signer_of(server: str) -> Signer:
    return Signer(server, Ed25519PrivateKey.from_private_bytes(address_of(server.encode())))


def saw(stage: Stage, address: Address, raw: bytes, *counterparts: str) -> Observation:
    return Observation(at_us=T0, stage=stage, message=address, counterparts=counterparts, raw=raw)


def pcp_world() -> tuple[Address, World]:
    raw = b'{"data":"' + b"x" * 400 + b'"}'
    address = address_of(raw)
    names = [f"pcp://agent{i}.example.com/agent" for i in range(3)]
    return address, {
        BROKER: [saw(Stage.ACCEPTED, address, raw, "pcp://control.example.com/controller")]
        + [saw(Stage.DELIVERED, address, raw, name) for name in names]
    }


def won_chain() -> tuple[Message, Message, Message]:
    keys = {name: SigningKey(address_of(name.encode())) for name in (ALICE, NODE_A, NODE_B)}
    sockets = f"{ALICE}#chat", f"{BOB}#chat"
    m = compose.compose(
        type=MessageType.CONNECTION,
        direction=Direction.OWNER,
        signer=ALICE,
        key=keys[ALICE],
        timestamp_ms=T0 // 1000,
        envelope=compose.socket_pair(*sockets),
        content=compose.text_content("the ladder is yours on Friday, " * 8),
    )

    def respond(node: str, sender: str, previous: Sequence[str]) -> Message:
        return compose.respond(
            m,
            success=True,
            signer=node,
            key=keys[node],
            timestamp_ms=T0 // 1000,
            connection=f"{sender.partition('#')[0]}/c/0a1b2c3d",
            sender_socket=sender,
            recipient_socket=sockets[0],
            previous=previous,
        )

    s1 = respond(NODE_A, sockets[0], [m.uri])
    return m, s1, respond(NODE_B, sockets[1], [s1.uri])


def won_world() -> tuple[Address, World]:
    m, s1, s2 = won_chain()
    at_a: list[tuple[Stage, Message, *tuple[str, ...]]] = [
        (Stage.ACCEPTED, m, ALICE),
        (Stage.CREATED, s1),
        (Stage.ECHOED, m, ALICE),
        (Stage.DELIVERED, s1, ALICE),
        (Stage.FORWARDED, m, NODE_B),
        (Stage.FORWARDED, s1, NODE_B),
        (Stage.ACCEPTED, s2, NODE_B),
        (Stage.DELIVERED, s2, ALICE),
    ]
    at_b: list[tuple[Stage, Message, *tuple[str, ...]]] = [
        (Stage.ACCEPTED, m, NODE_A),
        (Stage.ACCEPTED, s1, NODE_A),
        (Stage.CREATED, s2),
        (Stage.DELIVERED, m, BOB),
        (Stage.DELIVERED, s1, BOB),
        (Stage.DELIVERED, s2, BOB),
        (Stage.FORWARDED, s2, NODE_A),
    ]
    return m.address, {
        node: [saw(stage, message.address, message.raw, *whom) for stage, message, *whom in seen]
        for node, seen in ((NODE_A, at_a), (NODE_B, at_b))
    }


def swarm_world() -> tuple[Address, World]:
    raw = b"\x01" + bytes(range(256)) * 2
    address = address_of(raw)
    amber, birch, coral = PEERS
    return address, {
        amber: [saw(Stage.CREATED, address, raw), saw(Stage.SERVED, address, raw, coral)],
        birch: [saw(Stage.ACCEPTED, address, raw, amber), saw(Stage.DELIVERED, address, raw, "app")],
        coral: [saw(Stage.PULLED, address, raw, amber), saw(Stage.ACCEPTED, address, raw, amber)],
    }


def fill(writer: JournalWriter, hops: int) -> None:
    """Other traffic: fan-outs of one message to many."""
    while hops > 0:
        count = min(hops, len(FILLERS))
        other = address_of(b"%d" % writer.size)
        writer.append([Observation(at_us=T0, stage=Stage.DELIVERED, message=other, counterparts=FILLERS[:count])])
        hops -= count


def write_journal(path: Path, server: str, observations: list[Observation], hops: int, apart: int) -> None:
    with JournalWriter.open(path, server=server, signer=signer_of(server), durability="relaxed") as writer:
        fill(writer, hops // 2)
        for observation in observations:
            writer.append([observation])
            fill(writer, apart)
        fill(writer, hops - writer.size)
        writer.index()
        writer.checkpoint()


def measure(data: bytes, trusted: list[Verifier], servers: int, seconds: float) -> dict[str, int]:
    """Receipts a second of CPU: with new checkpoints, with known ones, and the floors of both."""
    raws = [message.raw for message in verify_receipt(data, trusted).messages if message.raw is not None]
    is_won = NODE_A.encode() in data
    note = b"x" * 150
    signer = signer_of(BROKER)
    key = signer.private_key.public_key()
    signature = signer.sign(note)

    def sign_all() -> None:
        for _ in range(servers):
            key.verify(signature, note)

    def hash_all() -> None:
        for raw in raws if is_won else ():
            digest_of(sorted(read_lines(raw)))

    def verify_new() -> None:
        check_signatures.cache_clear()
        verify_receipt(data, trusted)

    works: list[Callable[[], object]] = [verify_new, lambda: verify_receipt(data, trusted), sign_all, hash_all]
    best = [float("inf")] * len(works)
    end = time.process_time() + seconds
    while time.process_time() < end:
        for place, work in enumerate(works):
            start = time.process_time()
            for _ in range(BLOCK):
                work()
            best[place] = min(best[place], (time.process_time() - start) / BLOCK)
    new, known, signed, hashed = best
    return {
        "verified per CPU second, new checkpoints": round(1 / new),
        "floor": round(1 / (signed + hashed)),
        "verified per CPU second, known checkpoints": round(1 / known),
        "floor with known checkpoints": round(1 / hashed) if is_won else 0,
    }


def run(arguments: argparse.Namespace, directory: Path) -> Iterator[Row]:
    for name, make in (("pcp", pcp_world), ("won", won_world), ("swarm", swarm_world)):
        address, world = make()
        start = time.perf_counter()
        for number, (server, observations) in enumerate(world.items()):
            write_journal(directory / f"{number}.journal", server, observations, arguments.hops, arguments.apart)
        written_s = time.perf_counter() - start
        paths = sorted(directory.glob("*.journal"))
        sources = [JournalSource.open(path) for path in paths]
        start = time.perf_counter()
        data = build_receipt(sources, address).data
        built_s = time.perf_counter() - start
        trusted = [source.verifier for source in sources]
        rates = measure(data, trusted, len(sources), arguments.seconds)
        proof = verify_receipt(data, trusted)
        for source in sources:
            source.__exit__(None, None, None)
        for path in directory.iterdir():
            path.unlink()
        yield {
            "fabric": name,
            "journals": len(sources),
            "hops in each": arguments.hops,
            "hops shown": len(proof.hops),
            "receipt bytes": len(data),
            **rates,
            "build s": round(built_s, 3),
            "journals written and signed s": round(written_s, 1),
        }
        if len(data) >= MAX_BYTES:
            raise SystemExit(f"the {name} receipt has {len(data)} bytes, expected fewer than {MAX_BYTES}")


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--hops", type=int, default=100_000, help="how many hops each journal has")
    parser.add_argument("--apart", type=int, default=150, help="other hops between those of the message")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each measurement takes")
    return print_rows(parser, run)


if __name__ == "__main__":
    sys.exit(main())
