"""Real journals of all three fabrics, with messages that were delivered, refused and answered."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dovetail.journal.source import JournalSource
from dovetail.journal.writer import JournalWriter
from dovetail.model.address import Address, address_of
from dovetail.model.hop import Observation, Reason, Stage
from dovetail.receipt.build import BuildOptions, build_receipt
from dovetail.tlog.keys import Signer, Verifier
from dovetail.won import compose
from dovetail.won.message import Message
from dovetail.won.signing import SigningKey
from dovetail.won.vocabulary import Direction, MessageType

T0 = 1_763_236_800_000_000
SECOND = 1_000_000

BROKER = "pcp://broker.example/server"
AGENT, CONTROLLER = "pcp://agent7.example/agent", "pcp://control.example/controller"
NODE_A, NODE_B = "https://a.example/won/resource", "https://b.example/won/resource"
ALICE, BOB = f"{NODE_A}/atom/alice", f"{NODE_B}/atom/bob"
PEERS = tuple(f"swarm://harbour/{name}" for name in ("amber", "birch", "coral"))
WITNESSES = ("w1.example/witness", "w2.example/witness")
ALL_SERVERS = (BROKER, NODE_A, NODE_B, *PEERS)


def signer_of(name: str) -> Signer:
    """Always the same key for the same name."""
    seed = address_of(f"key of {name}".encode())
    return Signer(name, Ed25519PrivateKey.from_private_bytes(seed))


def verifiers(*names: str) -> list[Verifier]:
    """Public keys of these servers, or of all if none is named."""
    return [signer_of(name).verifier for name in names or (*ALL_SERVERS, *WITNESSES)]


def pcp_message(text: str = "restart the pump", number: int = 1) -> bytes:
    """A request as a PCP v1 client sends it."""
    return json.dumps(
        {
            "id": f"00000000-0000-4000-8000-{number:012d}",
            "message_type": "http://puppetlabs.com/rpc_blocking_request",
            "expires": "2025-11-15T20:05:00Z",
            "targets": [AGENT],
            "sender": CONTROLLER,
            "data": text,
        }
    ).encode()


def noise(number: int) -> Observation:
    """A message unrelated to any receipt."""
    raw = b"other message %d" % number
    return Observation(
        at_us=T0 + number, stage=Stage.ACCEPTED, message=address_of(raw), counterparts=("pcp://x/y",), raw=raw
    )


def write(path: Path, server: str, observations: list[Observation], *, before: int = 0, after: int = 0) -> Path:
    """A closed journal with one checkpoint over everything."""
    with JournalWriter.open(path, server=server, signer=signer_of(server), durability="relaxed") as writer:
        if before:
            writer.append([noise(number) for number in range(before)])
        for observation in observations:
            writer.append([observation])
        if after:
            writer.append([noise(1_000_000 + number) for number in range(after)])
        writer.checkpoint()
    return path


@dataclass(frozen=True)
class Case:
    """A message and the journals that have it."""

    address: Address
    journals: tuple[Path, ...]

    def build(self, **options) -> bytes:
        """Its receipt."""
        sources = [JournalSource.open(path) for path in self.journals]
        try:
            return build_receipt(sources, self.address, BuildOptions(**options)).data
        finally:
            for source in sources:
                source.__exit__(None, None, None)


def pcp_case(folder: Path, *, before: int = 3, after: int = 4) -> Case:
    """Accepted from the controller, delivered to three agents, one of them gone."""
    raw = pcp_message()
    address = address_of(raw)
    observations = [
        Observation(at_us=T0 + 5, stage=Stage.ACCEPTED, message=address, counterparts=(CONTROLLER,), raw=raw),
        Observation(at_us=T0 + 9, stage=Stage.DELIVERED, message=address, counterparts=(AGENT, f"{AGENT}2")),
        Observation(
            at_us=T0 + 11,
            stage=Stage.UNDELIVERABLE,
            message=address,
            counterparts=(f'{AGENT}"3\n',),
            reason=Reason.NO_RECIPIENT,
        ),
    ]
    return Case(address, (write(folder / "broker.journal", BROKER, observations, before=before, after=after),))


def won_chain(at_us: int = T0) -> tuple[Message, Message, Message]:
    """m from alice to bob, s1 of her node, s2 of his."""
    at_ms = at_us // 1000
    keys = {name: SigningKey(address_of(name.encode())) for name in (ALICE, NODE_A, NODE_B)}
    message = compose.compose(
        type=MessageType.CONNECTION,
        direction=Direction.OWNER,
        signer=ALICE,
        key=keys[ALICE],
        timestamp_ms=at_ms,
        envelope=compose.socket_pair(f"{ALICE}#chat", f"{BOB}#chat"),
        content=compose.text_content('the ladder is yours on Friday, "as agreed"'),
    )
    first = compose.respond(
        message,
        success=True,
        signer=NODE_A,
        key=keys[NODE_A],
        timestamp_ms=at_ms + 1,
        connection=f"{ALICE}/c/one",
        sender_socket=f"{ALICE}#chat",
        recipient_socket=f"{ALICE}#chat",
    )
    second = compose.respond(
        message,
        success=True,
        signer=NODE_B,
        key=keys[NODE_B],
        timestamp_ms=at_ms + 2,
        connection=f"{BOB}/c/one",
        sender_socket=f"{BOB}#chat",
        recipient_socket=f"{ALICE}#chat",
        previous=[first.uri],
    )
    return message, first, second


def won_observations() -> tuple[list[Observation], list[Observation]]:
    """What the two nodes see of one chain."""
    m, s1, s2 = won_chain()

    def saw(at: int, stage: Stage, message: Message, counterpart: str | None = None) -> Observation:
        return Observation(
            at_us=T0 + at,
            stage=stage,
            message=message.address,
            counterparts=(counterpart,) if counterpart else (),
            raw=message.raw,
        )

    at_a = [
        saw(10, Stage.ACCEPTED, m, ALICE),
        saw(11, Stage.CREATED, s1),
        saw(12, Stage.ECHOED, m, ALICE),
        saw(12, Stage.DELIVERED, s1, ALICE),
        saw(13, Stage.FORWARDED, m, NODE_B),
        saw(13, Stage.FORWARDED, s1, NODE_B),
        saw(40, Stage.ACCEPTED, s2, NODE_B),
        saw(41, Stage.DELIVERED, s2, ALICE),
    ]
    at_b = [
        saw(20, Stage.ACCEPTED, m, NODE_A),
        saw(20, Stage.ACCEPTED, s1, NODE_A),
        saw(21, Stage.CREATED, s2),
        saw(22, Stage.DELIVERED, m, BOB),
        saw(22, Stage.DELIVERED, s1, BOB),
        saw(22, Stage.DELIVERED, s2, BOB),
        saw(23, Stage.FORWARDED, s2, NODE_A),
    ]
    return at_a, at_b


def won_case(folder: Path, *, before: int = 5, after: int = 2) -> Case:
    """A complete chain at two nodes."""
    at_a, at_b = won_observations()
    return Case(
        at_a[0].message,
        (
            write(folder / "a.journal", NODE_A, at_a, before=before, after=after),
            write(folder / "b.journal", NODE_B, at_b, before=after, after=before),
        ),
    )


def swarm_case(folder: Path, *, before: int = 0, after: int = 300) -> Case:
    """Created by one peer, held by two others; one of them had to pull it."""
    raw = bytes(range(200))
    address = address_of(raw)

    def saw(at: int, stage: Stage, counterpart: str | None = None) -> Observation:
        names = (counterpart,) if counterpart else ()
        return Observation(at_us=T0 + at, stage=stage, message=address, counterparts=names, raw=raw)

    amber, birch, coral = PEERS
    seen = {
        amber: [saw(1, Stage.CREATED), saw(9, Stage.SERVED, coral)],
        birch: [saw(4, Stage.ACCEPTED, amber), saw(5, Stage.DELIVERED, "app://log")],
        coral: [
            Observation(at_us=T0 + 7, stage=Stage.PULLED, message=address, counterparts=(amber,)),
            saw(11, Stage.ACCEPTED, amber),
        ],
    }
    journals = tuple(
        write(folder / f"peer{number}.journal", peer, seen[peer], before=before, after=after + number)
        for number, peer in enumerate(PEERS)
    )
    return Case(address, journals)


def create(text: str, key: SigningKey | None = None):
    """A Create message of alice."""
    key = key or SigningKey(address_of(ALICE.encode()))
    content = compose.atom_content(ALICE, [f"{ALICE}#{text}"], key.public)
    return compose.compose(
        type=MessageType.CREATE,
        direction=Direction.OWNER,
        signer=ALICE,
        key=key,
        timestamp_ms=T0 // 1000,
        envelope=[(compose.v.P_ATOM, f"<{ALICE}>")],
        content=content,
    )


CASES = {"pcp": pcp_case, "won": won_case, "swarm": swarm_case}
