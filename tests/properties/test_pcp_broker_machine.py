"""The broker against a small model, under any order of what can happen to it.

The model knows only who is connected, who is paused, and what each message was. The claims: the inventory equals who is
connected, and so does what a subscriber was told; nobody gets a message twice; nobody unauthorised gets any; order per
pair holds; every accepted message ends in exactly one outcome per target in the journal.
"""

import json
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from dovetail.hop import Stage
from dovetail.pcp.settings import ALLOW_ALL, Rule
from dovetail.pcp.timestamps import encode_timestamp
from pcp.pcp_frames import compact, read_v1
from pcp.pcp_world import INVENTORY, World

NAMES = ("a", "b", "c")
TYPES = ("agent", "controller")
TARGETS = (
    *(f"pcp://{name}/{kind}" for name in (*NAMES, "*", "ghost") for kind in (*TYPES, "*")),
    "pcp:///server",
)
# b/agent may hear nobody but a/controller; controllers may not write to each other.
RULES = (
    Rule(allow=True, message_type="http://puppetlabs.com/*"),
    Rule(allow=True, sender="pcp://a/controller", target="pcp://b/agent"),
    Rule(allow=False, target="pcp://b/agent"),
    Rule(allow=False, sender="pcp://*/controller", target="pcp://*/controller"),
    *ALLOW_ALL,
)
OUTCOMES = {Stage.DELIVERED, Stage.REDELIVERED, Stage.UNDELIVERABLE, Stage.EXPIRED, Stage.REJECTED}


def is_allowed(sender: str, target: str) -> bool:
    if target == "pcp://b/agent":
        return sender == "pcp://a/controller"
    return not (sender.endswith("/controller") and target.endswith("/controller"))


class BrokerMachine(RuleBasedStateMachine):
    connections = Bundle("connections")

    def __init__(self) -> None:
        super().__init__()
        self.world = World(rules=RULES, queue_bytes=6_000, redelivery_messages=4, inventory_batch_ms=50)
        self.uris: dict[int, str] = {}
        self.versions: dict[int, int] = {}
        self.sent: dict[str, tuple[str, bytes, list[str], int]] = {}
        self.sequence = 0
        self.subscribers: set[int] = set()

    def forget_closed(self) -> None:
        for connection, _ in self.world.closes():
            self.uris.pop(connection, None)
            self.subscribers.discard(connection)

    @rule(target=connections, name=st.sampled_from(NAMES), kind=st.sampled_from(TYPES), version=st.sampled_from((1, 2)))
    def connect(self, name: str, kind: str, version: int) -> int:
        uri = f"pcp://{name}/{kind}"
        if version == 2:
            connection = self.world.connect_v2(name, kind)
        else:
            connection = self.world.open(name)
            request = self.world.associate_request(uri, expires=encode_timestamp(self.world.now + 1_000_000))
            self.world.send(connection, request)
        for other in [other for other, taken in self.uris.items() if taken == uri]:
            del self.uris[other]
            self.subscribers.discard(other)
        self.uris[connection] = uri
        self.versions[connection] = version
        return connection

    @rule(connection=connections)
    def break_wire(self, connection: int) -> None:
        self.world.close(connection)
        self.uris.pop(connection, None)
        self.subscribers.discard(connection)

    @rule(connection=connections)
    def stop_reading(self, connection: int) -> None:
        self.world.pause(connection)

    @rule(connection=connections)
    def read_again(self, connection: int) -> None:
        self.world.resume(connection)

    @rule(
        connection=connections,
        addressed=st.lists(st.sampled_from(TARGETS), min_size=1, max_size=3),
        ttl_ms=st.sampled_from((-5, 100, 3_000)),
        padding=st.sampled_from((0, 700)),
        then_break=st.booleans(),
        others=connections,
    )
    def send(self, connection, addressed, ttl_ms, padding, then_break, others) -> None:
        targets = addressed
        sender = self.uris.get(connection)
        if sender is None:
            return
        self.sequence += 1
        message_id = self.world.new_id()
        data = compact({"sequence": self.sequence, "padding": "x" * padding})
        if self.versions[connection] == 2:
            targets = targets[:1]
            fields = {"id": message_id, "data": json.loads(data)}
            frame = self.world.message_v2(targets[0], **fields)
        else:
            expires = encode_timestamp(self.world.now + ttl_ms * 1000)
            frame = self.world.message(sender, *targets, data=data, id=message_id, expires=expires)
        self.sent[message_id] = (sender, frame, targets, self.sequence)
        self.world.broker.receive_frame(frame, connection, self.world.now, self.versions[connection] == 2)
        if then_break:  # within the same turn, before anything is drained
            self.world.broker.receive_closed(others, self.world.now)
            self.uris.pop(others, None)
            self.subscribers.discard(others)
        self.world.drain()
        self.forget_closed()

    @rule(connection=connections)
    def subscribe(self, connection: int) -> None:
        uri = self.uris.get(connection)
        if uri is None:
            return
        data = {"query": ["pcp://*/*"], "subscribe": True}
        if self.versions[connection] == 2:
            self.world.send(connection, self.world.message_v2(None, message_type=INVENTORY, data=data), is_text=True)
        else:
            expires = encode_timestamp(self.world.now + 1_000_000)
            request = {"message_type": INVENTORY, "data": compact(data), "expires": expires}
            self.world.send(connection, self.world.message(uri, "pcp:///server", **request))
        self.forget_closed()
        if connection in self.uris:
            self.subscribers.add(connection)

    @rule(milliseconds=st.sampled_from((1, 60, 500)))
    def pass_time(self, milliseconds: int) -> None:
        self.world.pass_time(milliseconds)
        self.forget_closed()

    def copies(self, connection: int) -> list[tuple[str, str, int]]:
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
        for connection in sorted(self.world.received):
            uri = self.uris_ever.get(connection)
            for message_id, sender, sequence in self.copies(connection):
                assert uri is not None
                assert is_allowed(sender, uri)
                got[message_id, uri] += 1
                assert last.get((sender, uri), 0) < sequence
                last[sender, uri] = sequence
        assert all(count == 1 for count in got.values())

    def told_inventory(self, connection: int) -> set[str]:
        """The inventory as a subscriber knows it: the last response and the updates since."""
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

    @property
    def uris_ever(self) -> dict[int, str]:
        known = getattr(self, "_uris_ever", {})
        known.update(self.uris)
        self._uris_ever = known
        return known

    def teardown(self) -> None:
        self.uris_ever.update(self.uris)
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
            outcomes = Counter(counterpart for stage, counterpart, _ in hops[1:])
            assert {stage for stage, _, _ in hops[1:]} <= OUTCOMES
            assert all(count == 1 for count in outcomes.values()), hops
            for target in targets:
                if "*" not in target:
                    assert outcomes[target] == 1, (target, hops)
            assert outcomes
        assert self.world.broker.queued_bytes == 0


TestBrokerMachine = BrokerMachine.TestCase
TestBrokerMachine.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
