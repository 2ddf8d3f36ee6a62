"""The broker against a small model, under any order of events.

The model knows only who is connected, who is paused, and what each message was. The claims: the inventory equals the
connected clients, and so does what a subscriber was sent; no one gets a message twice; no one unauthorised gets any;
order per pair is kept; every accepted message ends in exactly one outcome per target in the journal.
"""

import json
import random
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dovetail.model.hop import Stage
from dovetail.model.times import time_text
from dovetail.pcp.settings import ALLOW_ALL, PcpSettings, Rule
from dovetail.pcp.vocabulary import is_outcome
from pcp.pcp_frames import compact, read_v1
from pcp.pcp_world import INVENTORY, World

NAMES = ("a", "b", "c")
TYPES = ("agent", "controller")
TARGETS = (
    *(f"pcp://{name}/{kind}" for name in (*NAMES, "*", "ghost") for kind in (*TYPES, "*")),
    "pcp:///server",
)
DEFINITE = tuple(target for target in TARGETS if "*" not in target and "ghost" not in target)
# b/agent may receive only from a/controller; controllers may not write to each other.
RULES = (
    Rule(allow=True, message_type="http://puppetlabs.com/*"),
    Rule(allow=True, sender="pcp://a/controller", target="pcp://b/agent"),
    Rule(allow=False, target="pcp://b/agent"),
    Rule(allow=False, sender="pcp://*/controller", target="pcp://*/controller"),
    *ALLOW_ALL,
)
# The same, and no one may write to a/agent.
STRICT_RULES = (RULES[0], Rule(allow=False, target="pcp://a/agent"), *RULES[1:])
PICK = st.integers(0, 11)


def is_allowed(sender: str, target: str, *, is_strict: bool) -> bool:
    if is_strict and target == "pcp://a/agent":
        return False
    if target == "pcp://b/agent":
        return sender == "pcp://a/controller"
    return not (sender.endswith("/controller") and target.endswith("/controller"))


class BrokerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(
            rules=RULES, queue_bytes=6_000, redelivery_messages=4, inventory_batch_ms=50, notice_ttl_ms=5_000
        )
        self.uris: dict[str, str] = {}
        self.uris_ever: dict[str, str] = {}
        self.versions: dict[str, int] = {}
        self.sent: dict[str, tuple[str, bytes, list[str], int]] = {}
        self.sequence = 0
        self.is_strict = False
        self.sent_strictly: dict[str, bool] = {}
        self.subscribers: set[str] = set()

    def forget_closed(self) -> None:
        for connection, _ in self.world.closes():
            self.uris.pop(connection, None)
            self.subscribers.discard(connection)

    @initialize(versions=st.lists(st.sampled_from((1, 1, 2)), min_size=6, max_size=6))
    def connect_everybody(self, versions: list[int]) -> None:
        for number, version in enumerate(versions):
            self.connect(NAMES[number // 2], TYPES[number % 2], version)

    def pick(self, number: int) -> str:
        """An open connection, or a former one if none is open."""
        live = sorted(self.uris, key=int)
        return live[number % len(live)] if live else "1"

    @rule(name=st.sampled_from(NAMES), kind=st.sampled_from(TYPES), version=st.sampled_from((1, 2)))
    def connect(self, name: str, kind: str, version: int) -> None:
        uri = f"pcp://{name}/{kind}"
        if version == 2:
            connection = self.world.connect_v2(name, kind)
        else:
            connection = self.world.open(name)
            request = self.world.associate_request(uri, expires=time_text(self.world.now + 1_000_000))
            self.world.send(connection, request)
        for other in [other for other, taken in self.uris.items() if taken == uri]:
            del self.uris[other]
            self.subscribers.discard(other)
        self.uris[connection] = self.uris_ever[connection] = uri
        self.versions[connection] = version

    @rule(number=PICK)
    def break_wire(self, number: int) -> None:
        connection = self.pick(number)
        self.world.close(connection)
        self.uris.pop(connection, None)
        self.subscribers.discard(connection)

    @rule(number=PICK, room=st.none() | st.integers(0, 1_500))
    def stop_reading(self, number: int, room: int | None) -> None:
        """The transport is full, or its kernel accepts some more bytes before it is."""
        if room is None:
            self.world.pause(self.pick(number))
        else:
            self.world.fill(self.pick(number), room)

    @rule(number=PICK)
    def read_again(self, number: int) -> None:
        self.world.resume(self.pick(number))

    @rule(
        burst=st.lists(
            st.tuples(
                PICK,
                st.lists(st.sampled_from(TARGETS), min_size=1, max_size=3),
                st.sampled_from((-5, 100, 3_000, 3_000)),
                st.sampled_from((0, 0, 700)),
            ),
            min_size=1,
            max_size=5,
        ),
        breaks=st.none() | PICK,
    )
    def send(self, burst: list[tuple[int, list[str], int, int]], breaks: int | None) -> None:
        """Several messages in one turn of the loop; a wire may break before anything is drained."""
        for number, targets, ttl_ms, padding in burst:
            self.send_one(self.pick(number), targets, ttl_ms, padding)
        if breaks is not None:
            connection = self.pick(breaks)
            self.world.broker.receive_closed(connection, self.world.now)
            self.uris.pop(connection, None)
            self.subscribers.discard(connection)
        self.world.drain()
        self.forget_closed()

    def send_one(self, connection: str, targets: list[str], ttl_ms: int, padding: int) -> None:
        sender = self.uris.get(connection)
        if sender is None:
            return
        self.sequence += 1
        message_id = self.world.new_id()
        data = {"sequence": self.sequence, "padding": "x" * padding}
        if self.versions[connection] == 2:
            targets = targets[:1]
            frame = self.world.message_v2(targets[0], id=message_id, data=data)
        else:
            expires = time_text(self.world.now + ttl_ms * 1000)
            frame = self.world.message(sender, *targets, data=compact(data), id=message_id, expires=expires)
        self.sent[message_id] = (sender, frame, targets, self.sequence)
        self.sent_strictly[message_id] = self.is_strict
        self.world.broker.receive_frame(frame, connection, self.world.now, self.versions[connection] == 2)

    @rule(
        number=PICK,
        receiver=st.sampled_from(DEFINITE),
        ttls_ms=st.lists(st.sampled_from((-5, 100, 3_000, 3_000)), min_size=3, max_size=6),
        breaks=st.none() | PICK,
    )
    def keep_sending(self, number: int, receiver: str, ttls_ms: list[int], breaks: int | None) -> None:
        """One client to another, repeatedly: this creates a template, in one turn and over several."""
        connection = self.pick(number)
        for ttl_ms in ttls_ms[:2]:
            self.send_one(connection, [receiver], ttl_ms, 0)
            self.world.drain()
        for ttl_ms in ttls_ms[2:]:
            self.send_one(connection, [receiver], ttl_ms, 0)
        self.send([], breaks)

    @rule(is_strict=st.booleans())
    def change_rules(self, is_strict: bool) -> None:
        """No one loses the right to associate by it."""
        self.is_strict = is_strict
        assert (
            self.world.broker.change_rules(PcpSettings(rules=STRICT_RULES if is_strict else RULES), self.world.now)
            == []
        )
        self.world.drain()

    @rule(burst=st.lists(st.tuples(PICK, st.lists(st.sampled_from(TARGETS), min_size=1, max_size=3)), max_size=3))
    def kill(self, burst: list[tuple[int, list[str]]]) -> None:
        """The broker is killed after committing what it accepted, before handing any of it over."""
        for number, targets in burst:
            self.send_one(self.pick(number), targets, 3_000, 0)
        self.world.events += self.world.take_events()
        self.world.restart()
        self.uris.clear()
        self.subscribers.clear()

    @rule(number=PICK)
    def subscribe(self, number: int) -> None:
        connection = self.pick(number)
        uri = self.uris.get(connection)
        if uri is None:
            return
        data = {"query": ["pcp://*/*"], "subscribe": True}
        if self.versions[connection] == 2:
            self.world.send(connection, self.world.message_v2(None, message_type=INVENTORY, data=data), is_text=True)
        else:
            expires = time_text(self.world.now + 1_000_000)
            request = {"message_type": INVENTORY, "data": compact(data), "expires": expires}
            self.world.send(connection, self.world.message(uri, "pcp:///server", **request))
        self.forget_closed()
        if connection in self.uris:
            self.subscribers.add(connection)

    @rule(versions=st.lists(st.sampled_from((1, 1, 2)), min_size=6, max_size=6))
    def kill_and_restart(self, versions: list[int]) -> None:
        """All connections are gone; the clients come back, perhaps in another version."""
        self.world.restart()
        self.uris.clear()
        self.subscribers.clear()
        self.connect_everybody(versions)

    @rule(milliseconds=st.sampled_from((1, 60, 500)))
    def pass_time(self, milliseconds: int) -> None:
        self.world.pass_time(milliseconds)
        self.forget_closed()

    def copies(self, connection: str) -> list[tuple[str, str, int]]:
        """Id, sender and sequence of each client message that a connection got."""
        found = []
        for payload in self.world.received[connection]:
            if self.versions.get(connection) == 2:
                fields = json.loads(payload)
                data = fields.get("data")
            else:
                fields, raw, _ = read_v1(payload)
                data = json.loads(raw) if raw else None
            if fields["sender"] != "pcp:///server":
                found.append((fields["id"], fields["sender"], data["sequence"]))
        return found

    @invariant()
    def inventory_equals_who_is_connected(self) -> None:
        assert self.world.inventory() == set(self.uris.values())

    @invariant()
    def nobody_gets_a_message_twice_or_unauthorised_and_order_holds(self) -> None:
        got: Counter[tuple[str, str]] = Counter()
        last: dict[tuple[str, str], int] = {}
        for connection in sorted(self.world.received, key=int):
            uri = self.uris_ever.get(connection)
            for message_id, sender, sequence in self.copies(connection):
                assert uri is not None
                assert is_allowed(sender, uri, is_strict=self.sent_strictly[message_id])
                got[message_id, uri] += 1
                assert last.get((sender, uri), 0) < sequence
                last[sender, uri] = sequence
        assert all(count == 1 for count in got.values())

    def told_inventory(self, connection: str) -> set[str]:
        """The inventory as known to a subscriber: the last response and the updates since."""
        known: set[str] = set()
        for payload in self.world.received[connection]:
            if self.versions[connection] == 2:
                fields = json.loads(payload)
                data = fields.get("data")
            else:
                fields, raw, _ = read_v1(payload)
                data = json.loads(raw) if raw else None
            if fields["message_type"].endswith("inventory_response"):
                known = set(data["uris"])
            elif fields["message_type"].endswith("inventory_update"):
                for change in data["changes"]:
                    assert (change["client"] in known) is (change["change"] == -1)
                    (known.add if change["change"] == 1 else known.remove)(change["client"])
        return known

    def teardown(self) -> None:
        self.world.pass_time(10_000)  # every lifetime is over now
        for connection in list(self.uris):
            self.world.resume(connection)
        self.world.pass_time(10_000)
        for connection in self.subscribers:
            assert self.told_inventory(connection) == self.world.inventory()
        for sender, frame, targets, _ in self.sent.values():
            hops = self.world.hops(frame)
            if not hops:
                continue  # its connection was closed before
            if hops[0][0] is Stage.REJECTED:
                assert len(hops) == 1
                continue
            assert hops[0] == (Stage.ACCEPTED, sender, None)
            outcomes = Counter(counterpart for stage, counterpart, _ in hops[1:] if is_outcome(stage, counterpart))
            assert all(stage is Stage.ROUTED or is_outcome(stage, counterpart) for stage, counterpart, _ in hops[1:])
            assert all(count == 1 for count in outcomes.values()), hops
            owed = {target for target in targets if "*" not in target}
            owed |= {counterpart for stage, counterpart, _ in hops if stage is Stage.ROUTED}
            assert owed <= outcomes.keys(), (owed, hops)
            assert outcomes
        assert self.world.broker.queued_bytes == 0


TestBrokerMachine = BrokerMachine.TestCase
TestBrokerMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("seed", range(4))
def test_long_random_walk(seed):
    """The same machine, run longer than hypothesis does, mostly sending."""
    source = random.Random(seed)
    machine = BrokerMachine()
    machine.connect_everybody([source.choice((1, 1, 2)) for _ in range(6)])
    for step in range(500):
        match source.choices(range(10), weights=(50, 16, 4, 8, 8, 2, 8, 30, 4, 2))[0]:
            case 0:
                burst = [
                    (
                        source.randrange(12),
                        source.choices(TARGETS, k=source.randint(1, 3)),
                        source.choice((-5, 100, 3_000)),
                        source.choice((0, 700)),
                    )
                    for _ in range(source.randint(1, 5))
                ]
                machine.send(burst, source.randrange(12) if source.random() < 0.1 else None)
            case 1:
                machine.connect(source.choice(NAMES), source.choice(TYPES), source.choice((1, 1, 2)))
            case 2:
                machine.break_wire(source.randrange(12))
            case 3:
                machine.stop_reading(source.randrange(12), source.choice((None, source.randrange(1_500))))
            case 4:
                machine.read_again(source.randrange(12))
            case 5:
                machine.subscribe(source.randrange(12))
            case 6:
                machine.pass_time(source.choice((1, 60, 500)))
            case 7:
                ttls_ms = source.choices((-5, 100, 3_000, 3_000), k=source.randint(3, 6))
                breaks = source.randrange(12) if source.random() < 0.1 else None
                machine.keep_sending(source.randrange(12), source.choice(DEFINITE), ttls_ms, breaks)
            case 8:
                machine.change_rules(source.random() < 0.5)
            case 9:
                targets = source.choices(TARGETS, k=source.randint(1, 3))
                machine.kill([(source.randrange(12), targets) for _ in range(source.randint(0, 3))])
        machine.inventory_equals_who_is_connected()
        if step % 50 == 49:
            machine.nobody_gets_a_message_twice_or_unauthorised_and_order_holds()
    stages = {seen.stage for seen in machine.world.observations()}
    assert {Stage.DELIVERED, Stage.REDELIVERED, Stage.EXPIRED, Stage.UNDELIVERABLE} <= stages
    machine.teardown()
