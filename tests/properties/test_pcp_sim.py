"""A broker and its clients in the simulated world: streams that break, a broker that crashes and comes back.

The claims, whatever happens: nobody gets a message twice, nobody gets one that the journal does not call delivered, and
once every lifetime is over each accepted message has exactly one outcome per target.
"""

import uuid
from collections import Counter

import pytest

from dovetail.hop import Stage
from dovetail.pcp.broker import Broker
from dovetail.pcp.client import Client, ClientOptions, ClientState
from dovetail.pcp.client_events import ConnectDecided, DropDecided, MessageReceived
from dovetail.pcp.codec_v1 import decode_frame
from dovetail.pcp.events import CloseDecided
from dovetail.pcp.session import ConnectionId
from dovetail.pcp.settings import ALLOW_ALL, PcpSettings
from dovetail.sim.core import Boot, CloseStream, CrashPoint, Frame, OpenStream
from dovetail.sim.world import SECOND_US, World

NAMES = ("a", "b", "c", "d")
TTL_MS = 3_000
OUTCOMES = {Stage.DELIVERED, Stage.REDELIVERED, Stage.UNDELIVERABLE, Stage.EXPIRED, Stage.REJECTED}


def new_ids(boot: Boot):
    return lambda: str(uuid.UUID(int=boot.random.getrandbits(128)))


class BrokerPlace:
    """The broker's core as the world drives it; a stream's label is the name in the certificate."""

    def __init__(self, boot: Boot) -> None:
        self.broker = Broker(PcpSettings(rules=ALLOW_ALL, inventory_batch_ms=100), new_ids(boot))
        self.broker.restore(boot.journal.hops(), boot.now)
        self._streams: dict[str, ConnectionId] = {}
        self._names: dict[ConnectionId, str] = {}
        self._closes: list[CloseStream] = []

    def receive_accepted(self, stream: str, peer: str, label: str, now: int) -> None:
        connection = ConnectionId(len(self._names) + 1)
        self._streams[stream] = connection
        self._names[connection] = stream
        self.broker.receive_opened(connection, label, "/pcp", now)

    def receive_opened(self, stream: str, peer: str, now: int) -> None:
        raise AssertionError("a broker opens no streams")

    def receive_frame(self, data: bytes, stream: str, now: int) -> None:
        if stream in self._streams:
            self.broker.receive_frame(data, self._streams[stream], now)

    def receive_closed(self, stream: str, code: int, now: int) -> None:
        connection = self._streams.pop(stream, None)
        if connection is not None:
            self.broker.receive_closed(connection, now)

    def handle_timer(self, now: int) -> None:
        self.broker.handle_timer(now)

    def next_timer(self) -> int | None:
        return self.broker.next_timer()

    def events(self) -> list[object]:
        events = self.broker.events()
        for event in events:
            if isinstance(event, CloseDecided):
                stream = self._names[event.connection]
                if self._streams.pop(stream, None) is not None:
                    self._closes.append(CloseStream(stream, event.code))
        return list(events)

    def to_send(self) -> list[object]:
        frames = [
            Frame(self._names[connection], payload)
            for connection, payloads in self.broker.to_send()
            for payload in payloads
        ]
        closes, self._closes = self._closes, []
        return [*frames, *closes]


class ClientPlace:
    """A client's core as the world drives it."""

    def __init__(self, boot: Boot, got: list[tuple[str, str]]) -> None:
        options = ClientOptions(backoff_ms=100, max_backoff_ms=500, association_timeout_ms=1_000)
        self.client = Client(f"pcp://{boot.place}/agent", 1, new_ids(boot), boot.random.random, options)
        self._place = boot.place
        self._got = got
        self._stream = ""
        self._opened = 0
        self._outgoing: list[object] = []
        self.client.start(boot.now)

    def receive_accepted(self, stream: str, peer: str, label: str, now: int) -> None:
        raise AssertionError("nobody opens a stream to a client")

    def receive_opened(self, stream: str, peer: str, now: int) -> None:
        if stream == self._stream:
            self.client.receive_opened(now)

    def receive_frame(self, data: bytes, stream: str, now: int) -> None:
        if stream == self._stream:
            self.client.receive_frame(data, now)

    def receive_closed(self, stream: str, code: int, now: int) -> None:
        if stream == self._stream:
            self.client.receive_closed(code, "closed", now)

    def handle_timer(self, now: int) -> None:
        self.client.handle_timer(now)

    def next_timer(self) -> int | None:
        return self.client.next_timer()

    def events(self) -> list[object]:
        for event in self.client.events():
            if isinstance(event, ConnectDecided):
                self._opened += 1
                self._stream = f"{self._place}-{self._opened}"
                self._outgoing.append(OpenStream(self._stream, "broker", self._place))
            elif isinstance(event, DropDecided):
                self._outgoing.append(CloseStream(self._stream, abort=True))
            elif isinstance(event, MessageReceived):
                self._got.append((event.message.id, self.client.uri))
        return []

    def to_send(self) -> list[object]:
        outgoing = [*self._outgoing, *(Frame(self._stream, payload) for payload in self.client.to_send())]
        self._outgoing = []
        return outgoing


def send(targets: list[str]):
    def act(core: ClientPlace, now: int) -> None:
        if core.client.state is ClientState.ASSOCIATED:
            core.client.send("http://example.com/ping", targets, b"{}", ttl_ms=TTL_MS, now=now)

    return act


def stall(name: str, *, is_full: bool):
    """The transport of a client is full, or has room again."""

    def act(core: BrokerPlace, now: int) -> None:
        session = core.broker.registry.by_uri.get(f"pcp://{name}/agent")
        if session is not None:
            (core.broker.receive_paused if is_full else core.broker.receive_resumed)(session.connection, now)

    return act


def run_world(seed: int) -> tuple[World, list[tuple[str, str]]]:
    world = World(seed)
    got: list[tuple[str, str]] = []
    world.add_place("broker", BrokerPlace, server="pcp://broker/server")
    for name in NAMES:
        world.add_place(name, lambda boot: ClientPlace(boot, got), server=f"pcp://{name}/server")
    chance = world.randomness.stream("test")
    points = list(CrashPoint)
    for number in range(120):
        sender = chance.choice(NAMES)
        targets = [f"pcp://{name}/agent" for name in chance.sample([*NAMES, "ghost"], chance.randint(1, 3))]
        world.command(sender, send(targets), after_us=SECOND_US + number * 50_000)
    for number in range(20):
        name, at_us = chance.choice(NAMES), SECOND_US + number * 300_000
        world.command("broker", stall(name, is_full=True), after_us=at_us)
        world.command("broker", stall(name, is_full=False), after_us=at_us + chance.randint(1, 600_000))
    for append in (15, 40, 70):
        world.crash_on_append("broker", append, chance.choice(points), restart_after_us=300_000)
    for at in (2, 4):
        world.schedule(at * SECOND_US, lambda: world.crash(chance.choice(NAMES), restart_after_us=200_000))
    world.run(30 * SECOND_US)
    return world, got


@pytest.mark.parametrize("seed", range(12))
def test_nothing_twice_and_one_outcome_each_through_crashes(seed):
    world, got = run_world(seed)
    hops = world.hops()["broker"]
    accepted = {hop.message: decode_frame(hop.raw).envelope for hop in hops if hop.stage is Stage.ACCEPTED and hop.raw}
    pings = {address: envelope for address, envelope in accepted.items() if envelope.message_type.endswith("ping")}
    assert len(pings) > 30
    assert all(count == 1 for count in Counter(got).values())
    outcomes = Counter((hop.message, hop.counterpart) for hop in hops if hop.message in pings and hop.stage in OUTCOMES)
    assert all(count == 1 for count in outcomes.values())
    for address, envelope in pings.items():
        for target in envelope.targets:
            assert outcomes[address, target] == 1, (envelope, target)
    delivered = {
        (pings[hop.message].id, hop.counterpart)
        for hop in hops
        if hop.message in pings and hop.stage in (Stage.DELIVERED, Stage.REDELIVERED)
    }
    assert set(got) <= delivered


def test_what_was_held_when_the_broker_crashed_is_redelivered():
    stages = Counter(hop.stage for seed in range(6) for hop in run_world(seed)[0].hops()["broker"])
    assert stages[Stage.REDELIVERED] > 10


def test_the_same_seed_gives_the_same_journal():
    assert run_world(3)[0].digests() == run_world(3)[0].digests()
