"""Small worlds of observations for all fabrics, with faults, and lakes built from them."""

from __future__ import annotations

import random
import uuid
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dovetail.audit import jars
from dovetail.audit.session import SessionOptions, open_session, tune
from dovetail.audit.settings import AuditSettings
from dovetail.journal.journal import Journal, JournalOptions
from dovetail.lake.seal import seal_journal
from dovetail.lake.store import LocalStore
from dovetail.model.address import NO_MESSAGE, address_of
from dovetail.model.fabric import Agreement
from dovetail.model.hop import Observation, Reason, Stage
from dovetail.model.times import time_text
from dovetail.pcp.codec_v1 import encode_frame
from dovetail.pcp.codec_v2 import encode_message
from dovetail.pcp.envelope import Envelope, MessageV2
from dovetail.swarm.content import Content, Reference, encode_content
from dovetail.tlog.keys import Signer
from dovetail.won import compose as c
from dovetail.won.vocabulary import Direction, MessageType
from won.won_samples import ALICE, ALICE_CHAT, BOB, BOB_CHAT, KEYS, NODE_A, NODE_B

T0_US = 1_763_236_800_000_000
SECOND = 1_000_000
EPOCH_MS = 60_000
BROKER = "pcp://broker.example/server"
PEERS = tuple(f"swarm://test/{number:040x}" for number in range(3))
A, B, C, D = (f"pcp://{name}/agent" for name in "abcd")
SETTINGS = AuditSettings(agreements={"": Agreement(epoch_ms=EPOCH_MS, work_target=(1 << 256) - 1)})

World = dict[str, list[Observation]]


def open_test_session():
    has_s3 = not jars.missing(jars.S3_LOCK)
    spark = open_session(SessionOptions(master="local[2]", driver_memory="2g", rows=0, has_s3=has_s3))
    tune(spark, 0)
    return spark


def signer_of(server: str) -> Signer:
    """Nodes sign journals with the key they sign messages with."""
    number = {NODE_A: 1, NODE_B: 2}.get(server)
    seed = address_of(server.encode()) if number is None else bytes([number]) * 32
    return Signer(server, Ed25519PrivateKey.from_private_bytes(seed))


COMPACTOR = signer_of("audit.example/compaction")


def see(at_us: int, stage: Stage, raw: bytes, *counterparts: str, address=None, reason=None, keep=True) -> Observation:
    return Observation(
        at_us=at_us,
        stage=stage,
        message=address_of(raw) if address is None else address,
        counterparts=counterparts,
        reason=reason,
        raw=raw if keep else None,
        size=len(raw),
    )


def write_lake(root: Path, *worlds: World) -> Path:
    """A lake of these servers; each further world is appended to the journals and sealed again."""
    lake = root / "lake"
    for world in worlds:
        for server, observations in world.items():
            append_and_seal(root, lake, server, observations)
    return lake


def append_and_seal(
    root: Path, lake: Path, server: str, observations: list[Observation], signer: Signer | None = None
) -> None:
    path = root / f"{address_of(server.encode()).hex()[:8]}.journal"
    journal = Journal.open(
        path, server=server, signer=signer or signer_of(server), options=JournalOptions(durability="relaxed")
    )
    if observations:
        journal.append(observations)
    journal.close()
    seal_journal(path, LocalStore(lake))


def pcp_frame(number: int, targets: list[str], *, sender=A, expires_us=T0_US + 3600 * SECOND, reply_to=None) -> bytes:
    more = {} if reply_to is None else {"in_reply_to": str(uuid.UUID(int=reply_to))}
    envelope = Envelope(
        str(uuid.UUID(int=number)), "http://example/work", time_text(expires_us), targets, sender, **more
    )
    return encode_frame(envelope, b'{"n":%d}' % number)


def pcp_world(
    rng: random.Random, count: int, first: int = 1, start_us: int = T0_US, *, has_fork: bool = False
) -> World:
    """Messages through one broker, each with one of the possible events; with `has_fork`, one is a contradiction."""
    seen: list[Observation] = []
    forks = 0
    for number in range(first, first + count):
        at = start_us + (number - first) * SECOND
        kind = rng.choice(
            [
                "delivered",
                "wildcard",
                "missing",
                "expired",
                "denied",
                "garbage",
                "silent",
                "routed",
                "held",
                "again",
                "answered",
                "forged_answer",
                "late_answer",
                "v2",
                "twin",
                "circle",
                "repeated",
                "shared_id",
            ]
        )
        forks += kind in ("twin", "circle")
        if has_fork and not forks and number == first + count - 1:
            kind = "twin"
        targets = {kind: ["pcp://*/agent"] for kind in ("wildcard", "routed", "held")} | {"missing": [B, C]}
        targets = targets.get(kind, [B])
        expires = at + 10 if kind in ("silent", "routed", "repeated") else at + 3600 * SECOND
        raw = pcp_frame(number, targets, expires_us=expires)
        if kind == "circle":
            raw = pcp_frame(number, targets, expires_us=expires, reply_to=2_000_000 + number)
        if kind == "v2":
            raw = encode_message(MessageV2(str(uuid.UUID(int=number)), "http://example/v2", B, A))
        if kind == "garbage":
            seen.append(see(at, Stage.REJECTED, b"\x01garbage%d" % number, A, reason=Reason.MALFORMED))
            continue
        if kind == "denied":
            seen.append(see(at, Stage.REJECTED, raw, A, reason=Reason.UNAUTHORIZED))
            continue
        seen.append(see(at, Stage.ACCEPTED, raw, A))
        later = at + rng.randrange(100, 5000)
        match kind:
            case "delivered" | "v2":
                seen.append(see(later, Stage.DELIVERED, raw, B))
            case "wildcard":
                seen.append(see(later, Stage.DELIVERED, raw, B, D))
            case "routed" | "held":
                seen.append(see(at, Stage.ROUTED, raw, B, D))
                seen.append(see(later, Stage.DELIVERED, raw, B))
            case "late_answer":  # to a message of an earlier world
                answer = pcp_frame(5_000_000 + number, [A], sender=B, reply_to=max(number - 100, 0))
                seen.append(see(later, Stage.DELIVERED, raw, B))
                seen.append(see(later + 10, Stage.ACCEPTED, answer, B))
                seen.append(see(later + 20, Stage.DELIVERED, answer, A))
            case "forged_answer":
                forged = pcp_frame(3_000_000 + number, [A], sender=B, reply_to=number)
                other = pcp_frame(4_000_000 + number, [A], sender=C, reply_to=number)
                seen.append(see(later, Stage.DELIVERED, raw, B))
                seen.append(see(later + 10, Stage.REJECTED, forged, D, reason=Reason.SENDER_MISMATCH))
                seen.append(see(later + 20, Stage.ACCEPTED, other, C))
                seen.append(see(later + 30, Stage.DELIVERED, other, A))
            case "missing":
                seen.append(see(at + 50, Stage.UNDELIVERABLE, raw, C, reason=Reason.NO_RECIPIENT))
                seen.append(see(later, Stage.DELIVERED, raw, B))
            case "expired":
                seen.append(see(later, Stage.EXPIRED, raw, B, reason=Reason.LIFETIME_OVER))
            case "shared_id":  # b answers c, not a, who chose the same id
                twin = pcp_frame(number, [B], sender=C, expires_us=expires)
                answer = pcp_frame(6_000_000 + number, [C], sender=B, reply_to=number)
                seen.append(see(later, Stage.DELIVERED, raw, B))
                seen.append(see(later + 10, Stage.ACCEPTED, twin, C))
                seen.append(see(later + 20, Stage.DELIVERED, twin, B))
                seen.append(see(later + 30, Stage.ACCEPTED, answer, B))
                seen.append(see(later + 40, Stage.DELIVERED, answer, C))
            case "repeated":  # there was nobody, and when it came again, the broker forgot it
                seen.append(see(at, Stage.UNDELIVERABLE, raw, B, reason=Reason.NO_RECIPIENT))
                seen.append(see(later, Stage.ACCEPTED, raw, A))
            case "again":
                seen.append(see(later, Stage.REDELIVERED, raw, B))
            case "answered":
                answer = pcp_frame(1_000_000 + number, [A], sender=B, reply_to=number)
                seen.append(see(later, Stage.DELIVERED, raw, B))
                seen.append(see(later + 10, Stage.ACCEPTED, answer, B))
                seen.append(see(later + 20, Stage.DELIVERED, answer, A))
            case "twin":
                twin = pcp_frame(number, [B, D], expires_us=expires)
                seen.append(see(later, Stage.DELIVERED, raw, B))
                seen.append(see(later + 10, Stage.ACCEPTED, twin, A))
                seen.append(see(later + 20, Stage.DELIVERED, twin, B, D))
            case "circle":
                back = pcp_frame(2_000_000 + number, [A], sender=B, reply_to=number)
                seen.append(see(later, Stage.DELIVERED, raw, B))
                seen.append(see(later + 10, Stage.ACCEPTED, back, B))
                seen.append(see(later + 20, Stage.DELIVERED, back, A))
    return {BROKER: seen}


def quiet_pcp(count: int, start_us: int = T0_US, first: int = 1) -> list[Observation]:
    """Messages through one broker, a minute apart, that all arrive."""
    seen = []
    for number in range(first, first + count):
        raw = pcp_frame(number, [B])
        at = start_us + (number - first) * 60 * SECOND
        seen += [see(at, Stage.ACCEPTED, raw, A), see(at + 100, Stage.DELIVERED, raw, B)]
    return seen


def swarm_message(rng: random.Random, at_us: int, parents: list[bytes], ttl=60) -> bytes:
    references = tuple(Reference(parent[:8], 0) for parent in parents)
    payload = rng.randbytes(rng.randrange(0, 40))
    return encode_content(
        Content(
            timestamp_ms=at_us // 1000,
            ttl_epochs=ttl,
            references=references,
            payload=payload,
            pow_nonce=rng.getrandbits(64),
        )
    )


def swarm_world(rng: random.Random, count: int, start_us: int = T0_US) -> World:
    """Messages that spread over three peers; some do not reach all or are refused by one, some refer to messages that
    no peer has or that are not older, and some expire before all have them."""
    seen: dict[str, list[Observation]] = {peer: [] for peer in PEERS}
    known: list[bytes] = []
    for number in range(count):
        at = start_us + number * SECOND
        kind = rng.choice(["all", "all", "all", "two", "gap", "late", "short", "future"])
        parents = rng.sample(known[-6:], k=min(len(known[-6:]), rng.randrange(0, 3)))
        if kind == "gap":
            parents = [*parents, rng.randbytes(32)]
        made_us = at + 7200 * SECOND if kind == "future" else at
        raw = swarm_message(rng, made_us, parents, ttl=1 if kind == "short" else 600)
        address = address_of(raw)
        origin, *others = rng.sample(PEERS, k=3)
        seen[origin].append(see(at, Stage.CREATED, raw))
        reached = others[:1] if kind == "two" else others
        seen[origin].append(see(at + 5, Stage.FORWARDED, raw, *others))
        for step, peer in enumerate(reached, 1):
            took = at + step * rng.randrange(1000, 90_000) + (40 * SECOND if kind == "late" else 0)
            if kind == "future" and step == len(reached):
                seen[peer].append(see(took, Stage.REJECTED, raw, origin, reason=Reason.FROM_FUTURE))
                continue
            seen[peer].append(see(took, Stage.ACCEPTED, raw, origin))
        known.append(bytes(address))
    for peer in PEERS:
        seen[peer].append(see(start_us + 1, Stage.REJECTED, b"\x79\x10\x05short", "udp://x", reason=Reason.TRUNCATED))
    for lacking in (1, 2):  # brief messages that one peer never gets; the last peer was away before the world began
        raw = swarm_message(random.Random(start_us + lacking), start_us + 10 * SECOND, [], ttl=1)
        seen[PEERS[0]].append(see(start_us + 10 * SECOND, Stage.CREATED, raw))
        seen[PEERS[3 - lacking]].append(see(start_us + 10 * SECOND + 900, Stage.ACCEPTED, raw, PEERS[0]))
    since = (time_text(start_us - 95 * SECOND),)
    note = Observation(
        at_us=start_us, stage=Stage.NOTED, message=NO_MESSAGE, counterparts=since, reason=Reason.RESTARTED
    )
    seen[PEERS[2]].append(note)
    return {peer: sorted(observations, key=lambda o: o.at_us) for peer, observations in seen.items()}


def won_create(atom: str, chat: str, at_ms: int):
    return c.compose(
        type=MessageType.CREATE,
        direction=Direction.OWNER,
        signer=atom,
        key=KEYS[atom],
        timestamp_ms=at_ms,
        envelope=[(c.v.P_ATOM, f"<{atom}>")],
        content=c.atom_content(atom, [chat], KEYS[atom].public),
    )


def won_text(text: str, at_ms: int, key=None, *, target: str = BOB_CHAT):
    return c.compose(
        type=MessageType.CONNECTION,
        direction=Direction.OWNER,
        signer=ALICE,
        key=key or KEYS[ALICE],
        timestamp_ms=at_ms,
        envelope=c.socket_pair(ALICE_CHAT, target),
        content=c.text_content(text),
    )


def won_response(message, node: str, at_ms: int, *, first: bool, ok=True, previous=()):
    own = ALICE_CHAT if first else BOB_CHAT
    more = {"previous": tuple(previous)} if ok and previous else {}
    return c.respond(
        message,
        success=ok,
        signer=node,
        key=KEYS[node],
        timestamp_ms=at_ms,
        connection=f"{ALICE if first else BOB}/c/one",
        sender_socket=own,
        recipient_socket=ALICE_CHAT,
        **more,
    )


def won_world(rng: random.Random, count: int, start_us: int = T0_US, skew_us: int = 0, creates: bool = True) -> World:
    """Two nodes: both atoms are created, then alice writes to bob; the clock of node B is `skew_us` ahead."""
    at_a: list[Observation] = []
    at_b: list[Observation] = []
    atoms = ((NODE_A, at_a, ALICE, ALICE_CHAT), (NODE_B, at_b, BOB, BOB_CHAT)) if creates else ()
    for node, log, atom, chat in atoms:
        create = won_create(atom, chat, start_us // 1000)
        answer = c.respond(
            create, success=True, signer=node, key=KEYS[node], timestamp_ms=start_us // 1000 + 1, atom=atom
        )
        log.append(see(start_us, Stage.ACCEPTED, create.raw, atom, address=create.address))
        log.append(see(start_us + 10, Stage.CREATED, answer.raw, address=answer.address))
    for number in range(count):
        _won_chain(rng, at_a, at_b, start_us + (number + 1) * SECOND, number, skew_us)
    return {NODE_A: at_a, NODE_B: at_b}


def _won_chain(rng, at_a, at_b, at: int, number: int, skew_us: int) -> None:
    kind = rng.choice(["complete", "complete", "lost", "refused", "half", "twice", "forged", "orphan", "kept", "alone"])
    ms = at // 1000
    forged = kind == "forged"
    m = won_text(f"text {number} {start_tag(rng)}", ms, key=KEYS["mallory"] if forged else None)
    if kind == "refused":
        at_a.append(see(at, Stage.REJECTED, m.raw, ALICE, address=m.address, reason=Reason.WRONG_STATE))
        failure = won_response(m, NODE_A, ms + 1, first=True, ok=False)
        at_a.append(see(at + 10, Stage.CREATED, failure.raw, address=failure.address))
        return
    s1 = won_response(m, NODE_A, ms + 1, first=True)
    s2 = won_response(m, NODE_B, ms + 2, first=False, previous=[s1.uri])
    if kind != "orphan":
        at_a.append(see(at, Stage.ACCEPTED, m.raw, ALICE, address=m.address))
    at_a.append(see(at + 10, Stage.CREATED, s1.raw, address=s1.address))
    at_a.append(see(at + 20, Stage.ECHOED, b"", ALICE, address=m.address, keep=False))
    if kind == "alone":
        return
    at_a.append(see(at + 30, Stage.FORWARDED, b"", NODE_B, address=m.address, keep=False))
    if kind == "twice":
        other = won_response(m, NODE_A, ms + 3, first=True)
        at_a.append(see(at + 40, Stage.CREATED, other.raw, address=other.address))
    if kind in ("lost", "orphan"):
        return
    there = at + 20_000 + skew_us
    at_b.append(see(there, Stage.ACCEPTED, m.raw, NODE_A, address=m.address))
    at_b.append(see(there, Stage.ACCEPTED, s1.raw, NODE_A, address=s1.address))
    at_b.append(see(there + 10, Stage.CREATED, s2.raw, address=s2.address))
    if kind != "kept":
        at_b.append(see(there + 20, Stage.DELIVERED, b"", BOB, address=m.address, keep=False))
    at_b.append(see(there + 30, Stage.FORWARDED, b"", NODE_A, address=s2.address, keep=False))
    if kind == "half":
        return
    back = at + 40_030
    at_a.append(see(back, Stage.ACCEPTED, s2.raw, NODE_B, address=s2.address))
    at_a.append(see(back + 10, Stage.DELIVERED, b"", ALICE, address=s2.address, keep=False))


def add_strangers(at_a: list[Observation], at: int) -> None:
    """Alice writes to somebody at a node whose journal is in no lake: it answers, refuses, and is never reached."""
    node = "https://stranger.example/won/resource"
    chat = f"{node}/atom/carol#chat"
    for ok in (True, False, None):
        at += SECOND
        ms = at // 1000
        m = won_text(f"to a stranger, {ok}", ms, target=chat)
        s1 = won_response(m, NODE_A, ms + 1, first=True)
        at_a.append(see(at, Stage.ACCEPTED, m.raw, ALICE, address=m.address))
        at_a.append(see(at + 10, Stage.CREATED, s1.raw, address=s1.address))
        at_a.append(see(at + 20, Stage.ECHOED, b"", ALICE, address=m.address, keep=False))
        if ok is None:
            continue
        answer = c.respond(
            m,
            success=ok,
            signer=node,
            key=KEYS["mallory"],
            timestamp_ms=ms + 2,
            connection=f"{node}/atom/carol/c/one",
            sender_socket=chat,
            recipient_socket=ALICE_CHAT,
            **({"previous": (s1.uri,)} if ok else {}),
        )
        at_a.append(see(at + 30, Stage.FORWARDED, b"", node, address=m.address, keep=False))
        at_a.append(see(at + 30, Stage.FORWARDED, b"", node, address=s1.address, keep=False))
        at_a.append(see(at + 40_000, Stage.ACCEPTED, answer.raw, node, address=answer.address))
        at_a.append(see(at + 40_010, Stage.DELIVERED, b"", ALICE, address=answer.address, keep=False))


def start_tag(rng: random.Random) -> str:
    return rng.randbytes(4).hex()


def whole_world(seed: int, count: int = 12, start_us: int = T0_US) -> World:
    """All fabrics, with something for each table."""
    rng = random.Random(seed)
    first = 1 + seed * 1000 + (start_us - T0_US) // SECOND
    pcp = pcp_world(rng, count, first=first, start_us=start_us, has_fork=True)
    swarm = swarm_world(rng, count, start_us)
    won = won_world(rng, count, start_us, skew_us=250_000, creates=start_us == T0_US)
    add_strangers(won[NODE_A], start_us + (count + 1) * SECOND)
    return {**pcp, **swarm, **won}
