"""A small audited world as Parquet: all fabrics, all outcomes, findings, and names that peers could choose."""

from __future__ import annotations

import datetime as dt
import hashlib
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.audit.check_guides import GUIDES
from tables_on_disk import SCHEMAS, write_tables

BEGIN = dt.datetime(2026, 3, 1, 9, 0, tzinfo=dt.UTC)
HOSTILE = (
    "<script>window.hacked=1</script>",
    "</script><img src=x onerror=window.hacked=1>",
    "<!--<script>",
    "pcp://\u202egnp.exe/agent",
    "x" * 10_240,
    "\"'><svg onload=window.hacked=1>",
)
BROKER = "pcp://broker/server"
NODES = tuple(f"https://{name}.example/won/resource" for name in ("alder", "birch", "cedar"))
PEERS = tuple(f"swarm://meadow/{number:02x}{'5a' * 9}" for number in range(12))
RUN = "http://example.org/run_task"
WON_TYPES = ("ConnectMessage", "ConnectionMessage", "ConnectionMessage", "CloseMessage")
SEVERITY = {"integrity": "error", "fork": "error", "gap": "warning", "delivery": "warning", "chain": "warning"}


def after(seconds: float) -> dt.datetime:
    return BEGIN + dt.timedelta(seconds=seconds)


def address(*parts: object) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()


class World:
    """Rows of all tables, written by `write`."""

    def __init__(self, seed: int = 7) -> None:
        self.random = random.Random(seed)
        self.rows: dict[str, list[dict[str, Any]]] = {name: [] for name in SCHEMAS}
        self.sequence: dict[str, int] = defaultdict(int)

    def add(self, table: str, **values: Any) -> None:
        self.rows[table].append({**dict.fromkeys(SCHEMAS[table].names), **values})

    def hop(
        self,
        server: str,
        at: float,
        stage: str,
        message: bytes,
        counterpart: str | None = None,
        reason: str | None = None,
    ) -> None:
        fabric = {"pcp": "pcp", "swarm": "swarm"}.get(server.partition("://")[0], "won")
        self.add(
            "hops",
            fabric=fabric,
            server=server,
            seq=self.sequence[server],
            at=after(at),
            stage=stage,
            message=message,
            counterpart=counterpart,
            reason=reason,
        )
        self.sequence[server] += 1

    def message(self, fabric: str, message: bytes, key: bytes, at: float, **values: Any) -> None:
        base = {"id": key.hex(), "recipients": [], "created": after(at), "expires": after(at + 60), "size": 300}
        self.add("messages", fabric=fabric, message=message, key=key, **{**base, **values})

    def find(
        self,
        check: str,
        fabric: str,
        message: bytes | None = None,
        server: str | None = None,
        seq: int | None = None,
        at: float = 0,
        detail: str = "",
    ) -> None:
        note = check in (
            "delivery.rejected",
            "gap.expired",
            "gap.unknown_request",
            "quarantine.refused",
            "message.unknown_key",
        )
        error = check in ("delivery.lost", "gap.nobody")
        severity = "note" if note else "error" if error else SEVERITY.get(check.partition(".")[0], "error")
        self.add(
            "findings",
            check=check,
            severity=severity,
            fabric=fabric,
            server=server,
            message=message,
            seq=seq,
            at=after(at),
            detail=detail,
        )

    def write(self, root: Path) -> Path:
        return write_tables(root, self.rows, as_of=after(400))


def add_pcp(world: World, *, messages: int = 240, names: Sequence[str] = ()) -> None:
    """Requests to agents, some to many, with every outcome that a broker records."""
    agents = [f"pcp://agent-{number:02d}.example/agent" for number in range(10)] + list(names)
    failures = (
        ("expired", "expired", "lifetime_over"),
        ("undeliverable", "undeliverable", "no_recipient"),
        ("unauthorized", "rejected", "unauthorized"),
        ("rejected", "rejected", "malformed"),
        ("undeliverable", "undeliverable", "slow_consumer"),
    )
    for number in range(messages):
        at = 300 * number / messages + world.random.random()
        sender = f"pcp://control-{number % 3}.example/controller"
        request, answer = address("pcp", number), address("pcp answer", number)
        targets = agents if number % 60 == 7 else [agents[number % len(agents)]]
        world.message("pcp", request, request[:16], at, type=RUN, sender=sender, recipients=targets)
        world.hop(BROKER, at, "accepted", request, sender)
        for place, target in enumerate(targets):
            is_answered = number % 4 == 0 and place == 0
            outcome, stage, reason = "delivered" if is_answered else "handed_over", "delivered", None
            if (number + place) % 17 == 3:
                outcome, stage, reason = failures[(number + place) // 17 % len(failures)]
            took = world.random.lognormvariate(1.2, 0.9) * (25 if target == agents[3] else 1)
            world.hop(BROKER, at + took / 1000, stage, request, target, reason)
            world.add(
                "deliveries",
                fabric="pcp",
                message=request,
                type=RUN,
                sender=sender,
                recipient=target,
                outcome=outcome,
                failed_stage=None if reason is None else stage,
                failed_at=None if reason is None else BROKER,
                reason=reason,
                accepted=after(at),
                finished=after(at + took / 1000),
                latency_us=None if reason else int(took * 1000),
                attempts=1,
                skew_known=True,
            )
            if reason is not None:
                world.find(f"delivery.{outcome}", "pcp", request, BROKER, at=at, detail=f"for {target} {reason}")
        if number % 4 == 0:
            _answer(world, number, request, answer, sender, targets[0], at)
    world.add(
        "deliveries",
        fabric="pcp",
        message=address("pcp late"),
        type=RUN,
        sender=None,
        recipient=agents[0],
        outcome="in_flight",
        accepted=after(299),
        attempts=0,
        skew_known=False,
    )


def _answer(world: World, number: int, request: bytes, answer: bytes, sender: str, target: str, at: float) -> None:
    leg = world.random.lognormvariate(3, 0.7)
    is_failed = number % 40 == 0
    world.message(
        "pcp",
        answer,
        answer[:16],
        at,
        type=RUN + ("_error" if is_failed else "_response"),
        sender=target,
        recipients=[sender],
    )
    world.hop(BROKER, at + leg / 1000, "accepted", answer, target)
    world.hop(BROKER, at + leg / 1000 + 0.001, "delivered", answer, sender)
    world.add("links", fabric="pcp", child=answer, parent=request[:16], relation="in_reply_to")
    world.add(
        "chains",
        fabric="pcp",
        message=request,
        kind="request",
        type=RUN,
        sender=sender,
        recipient=target,
        state="failed" if is_failed else "complete",
        first_response=None if is_failed else answer,
        failure=answer if is_failed else None,
        begun=after(at),
        first_leg_us=int(leg * 1000),
        only_at=[],
    )


def add_won(world: World, *, conversations: int = 9) -> None:
    """Conversations of four messages each; some lack s2, some fail, one message is lost between nodes."""
    for number in range(conversations):
        home, away = NODES[number % 3], NODES[(number + 1) % 3]
        ends = f"{home}/atom/a{number}", f"{away}/atom/b{number}"
        previous = None
        for step, type_ in enumerate(WON_TYPES):
            at = 20 + 30 * number + 3 * step + world.random.random()
            state = "complete"
            if step == 2 and number % 4 == 1:
                state = ("awaiting_recipient", "failed")[number // 4 % 2]
            if step == 1 and number == 2:
                state = "awaiting_sender"
            message = _converse(world, (number, step), type_, home, away, ends, at, state)
            if previous is not None:
                world.add("links", fabric="won", child=message, parent=previous, relation="previous")
            previous = message


def _converse(
    world: World, place: tuple[int, int], type_: str, home: str, away: str, ends: tuple[str, str], at: float, state: str
) -> bytes:
    m, s1, s2 = (address("won", *place, part) for part in ("m", "s1", "s2"))
    leg1, leg2 = world.random.lognormvariate(2, 0.5) / 1000, world.random.lognormvariate(3, 0.5) / 1000
    world.message(
        "won",
        m,
        m,
        at,
        type=type_,
        sender=ends[0],
        recipients=[ends[1]],
        signer=ends[0],
        signature="valid",
        expires=None,
    )
    world.hop(home, at, "accepted", m, ends[0])
    chain: dict[str, Any] = {
        "fabric": "won",
        "message": m,
        "kind": "connection",
        "type": type_,
        "sender": ends[0],
        "recipient": ends[1],
        "conversation": " ".join(sorted(ends)),
        "state": state,
        "begun": after(at),
        "only_at": [],
    }
    delivery: dict[str, Any] = {
        "fabric": "won",
        "message": m,
        "type": type_,
        "sender": ends[0],
        "recipient": ends[1],
        "outcome": "delivered",
        "accepted": after(at),
        "attempts": 1,
        "skew_known": True,
    }
    if state != "awaiting_sender":
        world.message(
            "won",
            s1,
            s1,
            at + leg1,
            type="SuccessResponse",
            sender=home,
            recipients=[ends[0]],
            signer=home,
            signature="valid",
            expires=None,
        )
        world.add("links", fabric="won", child=s1, parent=m, relation="responding_to")
        world.hop(home, at + leg1, "created", s1)
        world.hop(home, at + leg1 + 0.001, "delivered", s1, ends[0])
        world.hop(home, at + leg1 + 0.001, "forwarded", m, away)
        chain |= {"first_response": s1, "first_leg_us": int(leg1 * 1e6)}
    if state in ("complete", "failed"):
        world.hop(away, at + leg1 + leg2 / 2, "accepted", m, home)
        world.hop(away, at + leg1 + leg2 / 2 + 0.0005, "delivered", m, ends[1])
        kind = "FailureResponse" if state == "failed" else "SuccessResponse"
        world.message(
            "won",
            s2,
            s2,
            at + leg1 + leg2 / 2,
            type=kind,
            sender=away,
            recipients=[ends[0]],
            signer=away,
            signature="valid",
            expires=None,
        )
        world.add("links", fabric="won", child=s2, parent=m, relation="responding_to")
        world.hop(away, at + leg1 + leg2 / 2 + 0.0002, "created", s2)
        world.hop(away, at + leg1 + leg2 / 2 + 0.0003, "forwarded", s2, home)
        world.hop(home, at + leg1 + leg2, "accepted", s2, away)
        world.hop(home, at + leg1 + leg2 + 0.0002, "delivered", s2, ends[0])
        chain |= {"second_response": s2, "second_leg_us": int(leg2 * 1e6)} if state == "complete" else {"failure": s2}
        delivery |= {"finished": after(at + leg1 + leg2), "latency_us": int((leg1 + leg2) * 1e6)}
    else:
        delivery |= {"outcome": "lost", "failed_stage": "forwarded", "failed_at": away}
        world.find("delivery.lost", "won", m, away, at=at, detail=f"for {ends[1]}")
    if state != "complete":
        world.find(
            "chain.failed" if state == "failed" else "chain.incomplete",
            "won",
            m,
            at=at,
            detail=f"{state} {type_} from {ends[0]}",
        )
    world.add("chains", **chain)
    world.add("deliveries", **delivery)
    return m


def add_swarm(world: World, *, messages: int = 60) -> None:
    """Messages that peers push and pull; one peer joins late, a parent is missing, two messages form a cycle."""
    made: list[bytes] = []
    for number in range(messages):
        at = 5 * number + world.random.random()
        message = address("swarm", number)
        origin = number % len(PEERS)
        world.message("swarm", message, message[:8], at, type="content")
        parents = world.random.sample(made[-4:], min(len(made), 1 + number % 3))
        for parent in parents:
            world.add("links", fabric="swarm", child=message, parent=parent[:8], relation="refers")
        made.append(message)
        held = {origin: at}
        world.hop(PEERS[origin], at, "created", message)
        order = [peer for peer in range(len(PEERS)) if peer != origin and not (peer == 11 and number < messages / 2)]
        world.random.shuffle(order)
        for step, peer in enumerate(order):
            via = world.random.choice(list(held))
            when = held[via] + world.random.lognormvariate(3, 0.6) / 1000
            if (number + step) % 13 == 5:
                when += 0.4
                world.hop(PEERS[peer], when - 0.05, "pulled", message, PEERS[via])
            world.hop(PEERS[peer], when, "accepted", message, PEERS[via])
            held[peer] = when
        times = sorted(held.values())
        is_everywhere = len(held) == len(PEERS)
        world.add(
            "coverage",
            swarm="meadow",
            scope="message",
            message=message,
            peers=len(PEERS),
            holders=len(held),
            lacking=len(PEERS) - len(held),
            expires=after(at + 3600),
            first_seen=after(at),
            half_us=int((times[5] - at) * 1e6),
            most_us=int((times[-1] - at) * 1e6) if is_everywhere else None,
            all_us=int((times[-1] - at) * 1e6) if is_everywhere else None,
        )
        for peer, uri in enumerate(PEERS):
            took = None if peer not in held else int((held[peer] - at) * 1e6)
            world.add(
                "deliveries",
                fabric="swarm",
                message=message,
                type="content",
                recipient=uri,
                outcome="in_flight" if took is None else "delivered",
                accepted=after(at),
                finished=None if took is None else after(held[peer]),
                latency_us=took,
                attempts=1,
                skew_known=True,
            )
    for peer, uri in enumerate(PEERS):
        lacking = messages // 2 if peer == 11 else 0
        world.add(
            "coverage",
            swarm="meadow",
            scope="peer",
            peer=uri,
            peers=len(PEERS),
            holders=messages - lacking,
            lacking=lacking,
            first_seen=after(150 if peer == 11 else 0),
        )
    lost = address("swarm", "lost")[:8]
    world.add("links", fabric="swarm", child=made[20], parent=lost, relation="refers")
    world.add(
        "gaps",
        fabric="swarm",
        child=made[20],
        parent=lost,
        relation="refers",
        scope="nobody",
        holders=0,
        since=after(100),
        unexpired=True,
    )
    world.add(
        "gaps",
        fabric="swarm",
        child=made[40],
        parent=made[12][:8],
        relation="refers",
        server=PEERS[11],
        scope="server",
        holders=11,
        since=after(200),
        unexpired=None,
    )
    world.find("gap.nobody", "swarm", made[20], at=100, detail=f"lacks {lost.hex()}")
    world.find("gap.server", "swarm", made[40], PEERS[11], at=200, detail=f"lacks {made[12].hex()[:16]}, which 11 have")
    world.add("links", fabric="swarm", child=made[30], parent=made[31][:8], relation="refers")
    world.add("links", fabric="swarm", child=made[31], parent=made[30][:8], relation="refers")
    world.add(
        "forks", fabric="swarm", kind="cycle", subject=made[30][:8], evidence=sorted(made[30:32]), first_seen=after(155)
    )
    world.find(
        "fork.cycle", "swarm", min(made[30:32]), at=155, detail=", ".join(each.hex()[:16] for each in made[30:32])
    )


def add_forged_log(world: World) -> None:
    """An owner whose node continued a log twice from the same position."""
    common = address("won", 0, 1, "m")
    first, second = address("won", 0, 2, "m"), address("won fork")
    author = f"{NODES[0]}/atom/a0"
    world.message("won", second, second, 27, type="ConnectionMessage", sender=author, signer=author, signature="valid")
    world.hop(NODES[2], 27, "accepted", second, author)
    world.add("links", fabric="won", child=second, parent=common, relation="previous")
    world.add(
        "forks",
        fabric="won",
        kind="forked_log",
        author=author,
        subject=common,
        evidence=sorted([first, second]),
        first_seen=after(27),
    )
    world.find("fork.forked_log", "won", min(first, second), at=27, detail=f"{author}: two continuations")


def add_integrity(world: World) -> None:
    """Servers that are proven, and two that are not; and the traffic they saw."""
    counts = dict(world.sequence)
    for server, hops in counts.items():
        fabric = {"pcp": "pcp", "swarm": "swarm"}.get(server.partition("://")[0], "won")
        verdict, breaks, missing = "proven", [], 0
        if server == NODES[1]:
            verdict, breaks = (
                "broken",
                [
                    {
                        "check": "integrity.altered_row",
                        "file": "fabric=won/date=2026-03-01/part-1.parquet",
                        "seq": 17,
                        "detail": "leaf hash differs",
                    }
                ],
            )
            world.find("integrity.altered_row", fabric, None, server, 17, detail="leaf hash differs")
        if server == PEERS[4]:
            verdict, breaks, missing = (
                "incomplete",
                [{"check": "integrity.missing_hops", "file": None, "seq": 40, "detail": "40 to 59"}],
                20,
            )
            world.find("integrity.missing_hops", fabric, None, server, 40, detail="40 to 59")
        proven = 17 if verdict == "broken" else 40 if missing else hops
        world.add(
            "integrity",
            fabric=fabric,
            server=server,
            verdict=verdict,
            hops=hops,
            signed_hops=hops,
            signed_at=max((row["at"] for row in world.rows["hops"] if row["server"] == server), default=None),
            proven_hops=proven,
            missing_hops=missing,
            repeated_hops=0,
            backwards=0,
            checkpoints=3,
            proven_checkpoints=3 if verdict == "proven" else 1,
            key_source="pinned",
            breaks=breaks,
        )
    tally: dict[tuple[Any, ...], int] = defaultdict(int)
    for row in world.rows["hops"]:
        tally[
            row["at"].replace(second=0, microsecond=0), row["fabric"], row["server"], row["stage"], row["reason"]
        ] += 1
    for (minute, fabric, server, stage, reason), hops in tally.items():
        world.add(
            "traffic",
            minute=minute,
            fabric=fabric,
            server=server,
            type=None,
            stage=stage,
            reason=reason,
            hops=hops,
            messages=hops,
            bytes=hops * 300,
        )
    buckets: dict[tuple[str, str, int], int] = defaultdict(int)
    for row in world.rows["deliveries"]:
        if row["latency_us"] is not None:
            buckets[row["fabric"], row["type"], 1 << max(row["latency_us"] // 1000, 0).bit_length()] += 1
    for (fabric, type_, up_to), count in buckets.items():
        world.add("latency", fabric=fabric, type=type_, up_to_ms=up_to, deliveries=count)
    world.add("skew", server=NODES[0], other=NODES[1], offset_us=-1800, error_us=450, there=20, back=21)


def add_other_checks(world: World) -> None:
    """One finding of every check that the rest of the world does not trip."""
    caused = {row["check"] for row in world.rows["findings"]}
    for check in GUIDES:
        if check not in caused:
            world.find(check, "won", address("won", 3, 0, "m"), NODES[0], at=250, detail="an example")


def small_world(*, names: Sequence[str] = ()) -> World:
    world = World()
    add_pcp(world, names=names)
    add_won(world)
    add_swarm(world)
    add_forged_log(world)
    add_integrity(world)
    for name in names:
        world.find("delivery.overdue", "pcp", address("pcp", 7), name, at=1, detail=name)
    return world


def add_many_findings(world: World, count: int) -> None:
    """Findings about separate messages, each with hops, as on a bad day."""
    for number in range(count):
        message = address("many", number)
        target = f"pcp://agent-{number % 500:03d}.example/agent"
        world.hop(BROKER, number / 100, "accepted", message, "pcp://control.example/controller")
        world.hop(BROKER, number / 100 + 0.002, "undeliverable", message, target, "no_recipient")
        world.find(
            "delivery.undeliverable", "pcp", message, BROKER, at=number / 100, detail=f"for {target} no_recipient"
        )
