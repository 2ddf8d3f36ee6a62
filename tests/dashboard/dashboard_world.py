"""Journals of all fabrics with messages to find, some of them hostile, for the tests of the dashboard."""

from __future__ import annotations

import json
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dovetail.journal.writer import JournalWriter
from dovetail.model.address import address_of
from dovetail.model.hop import Observation, Reason, Stage
from dovetail.tlog.keys import Signer
from pcp.pcp_frames import frame_v1
from receipt import receipt_samples

T0 = 1_794_772_740_000_000  # 2026-11-15T19:59:00Z
SECOND = 1_000_000
BROKER = "pcp://broker.example/server"
NODE_A, NODE_B = "https://a.example/won/resource", "https://b.example/won/resource"
ALICE, BOB = f"{NODE_A}/atom/alice", f"{NODE_B}/atom/bob"
CONTROLLER, AGENT = "pcp://control.example/controller", "pcp://agent7.example/agent"
REQUEST_ID = "6f1e7a46-1c1c-4b5e-9d1a-2f1f6a3c9b11"
REPLY_ID = "0b0e7a46-1c1c-4b5e-9d1a-2f1f6a3c9b12"
HOSTILE_TEXT = "<script>window.hacked=1</script><img src=x onerror=window.hacked=1>\u202egnp.exe"
HOSTILE_NAME = "pcp://<script>window.hacked=1<script>\u202e" + "x" * 7_000 + "/agent"

REQUEST = frame_v1(
    json.dumps({"action": "restart the pump", "note": "Grüße"}).encode(),
    id=REQUEST_ID,
    sender=CONTROLLER,
    targets=[AGENT],
    message_type="http://example.com/restart",
)
REPLY = frame_v1(
    b'{"done": true}',
    id=REPLY_ID,
    sender=AGENT,
    targets=[CONTROLLER],
    in_reply_to=REQUEST_ID,
    message_type="http://example.com/done",
)
HOSTILE = frame_v1(
    json.dumps({"say": HOSTILE_TEXT, "name": "n" * 10_240}, ensure_ascii=False).encode(),
    id="dead7a46-1c1c-4b5e-9d1a-2f1f6a3c9b13",
    sender=CONTROLLER,
    targets=[AGENT],
)


def signer_of(server: str) -> Signer:
    return Signer(server, Ed25519PrivateKey.from_private_bytes(address_of(server.encode())))


def open_writer(path: Path, server: str) -> JournalWriter:
    return JournalWriter.open(path, server=server, signer=signer_of(server), durability="relaxed")


def observe(raw: bytes, stage: Stage, *counterparts: str, at_us: int = T0, reason: Reason | None = None) -> Observation:
    return Observation(
        at_us=at_us, stage=stage, message=address_of(raw), counterparts=counterparts, raw=raw, reason=reason
    )


def noise(number: int) -> Observation:
    return observe(b"noise %d" % number, Stage.ACCEPTED, f"pcp://host{number % 50}/agent", at_us=T0)


def write_pcp(folder: Path, *, before: int = 0, after: int = 0) -> Path:
    """A request and its reply, a refusal, a hostile message, with noise around them."""
    path = folder / "broker.journal"
    later = T0 + 60 * SECOND
    with open_writer(path, BROKER) as writer:
        for start in range(0, before, 1000):
            writer.append([noise(number) for number in range(start, min(before, start + 1000))])
        writer.append([observe(REQUEST, Stage.ACCEPTED, CONTROLLER, at_us=T0 + SECOND)])
        writer.append([observe(REQUEST, Stage.DELIVERED, AGENT, at_us=T0 + 2 * SECOND)])
        writer.append([observe(REPLY, Stage.ACCEPTED, AGENT, at_us=T0 + 3 * SECOND)])
        writer.append([observe(REPLY, Stage.DELIVERED, CONTROLLER, at_us=T0 + 4 * SECOND)])
        writer.append([observe(b"not a frame", Stage.REJECTED, AGENT, at_us=later, reason=Reason.MALFORMED)])
        writer.append([observe(HOSTILE, Stage.ACCEPTED, CONTROLLER, at_us=later + SECOND)])
        writer.append([observe(HOSTILE, Stage.DELIVERED, HOSTILE_NAME, at_us=later + 2 * SECOND)])
        for start in range(0, after, 1000):
            writer.append([noise(before + number) for number in range(start, min(after, start + 1000))])
        writer.checkpoint()
    return path


def won_chain():
    """m from alice to bob, s1 of her node, s2 of his."""
    return receipt_samples.won_chain(T0)


def write_won(folder: Path) -> tuple[Path, Path]:
    """Two nodes that saw one chain."""
    message, first, second = won_chain()

    def seen(each, stage, counterpart=None, after=0):
        counterparts = (counterpart,) if counterpart else ()
        return Observation(at_us=T0 + after, stage=stage, message=each.address, counterparts=counterparts, raw=each.raw)

    at_a = [
        seen(message, Stage.ACCEPTED, ALICE, 10),
        seen(first, Stage.CREATED, after=20),
        seen(message, Stage.FORWARDED, NODE_B, 30),
        seen(first, Stage.FORWARDED, NODE_B, 31),
        seen(second, Stage.ACCEPTED, NODE_B, 90_000),
        seen(second, Stage.DELIVERED, ALICE, 91_000),
    ]
    at_b = [
        seen(message, Stage.ACCEPTED, NODE_A, 40_000),
        seen(first, Stage.ACCEPTED, NODE_A, 40_010),
        seen(message, Stage.DELIVERED, BOB, 41_000),
        seen(second, Stage.CREATED, after=42_000),
        seen(second, Stage.FORWARDED, NODE_A, 43_000),
    ]
    paths = folder / "a.journal", folder / "b.journal"
    for path, server, observations in zip(paths, (NODE_A, NODE_B), (at_a, at_b), strict=True):
        with open_writer(path, server) as writer:
            for observation in observations:
                writer.append([observation])
            writer.checkpoint()
    return paths


def write_site(folder: Path, *, before: int = 0, after: int = 0) -> Path:
    """Journals of a broker and two nodes in one folder."""
    folder.mkdir(exist_ok=True)
    write_pcp(folder, before=before, after=after)
    write_won(folder)
    return folder
