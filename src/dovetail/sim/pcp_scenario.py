"""A broker and its clients in the simulated world: nothing twice, and one outcome for each recipient.

`places` is the number of clients. They send each other messages, also to all by a wildcard and to somebody who does not
exist, and now and then a client's transport is full for a while, longer than some messages live. The label of a stream
is the name in the client's certificate. Clients keep no journal: what they were handed is remembered by the play.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from dovetail.model import wire
from dovetail.model.address import Address
from dovetail.model.hop import Hop, Stage
from dovetail.pcp.broker import Broker
from dovetail.pcp.client import Client, ClientOptions, ClientState
from dovetail.pcp.client_events import MessageReceived
from dovetail.pcp.codec_v1 import decode_frame
from dovetail.pcp.envelope import Envelope
from dovetail.pcp.settings import ALLOW_ALL, PcpSettings
from dovetail.pcp.vocabulary import OUTCOMES, TTL_EXPIRED
from dovetail.sim.core import Boot, CloseStream, Frame, OpenStream, Outgoing
from dovetail.sim.invariants import Finding, check_journals
from dovetail.sim.randomness import draw_between
from dovetail.sim.scenario import Setting, name_places
from dovetail.sim.world import World

BROKER = "broker"
BROKER_URI = "pcp://broker/server"
MESSAGE_TYPE = "http://example.com/ping"
TTL_MS = 3_000
SHORT_TTL_MS = 150
"""Less than a client is away or a transport is full at times."""
WILDCARD_EVERY = 5
PAUSE_US = (20_000, 80_000)
"""How long it takes until somebody sends something again."""
STALL_EVERY_US = 300_000
MAX_TARGETS = 3
_GHOST = "ghost"
_EVERYBODY = "pcp://*/agent"
_OPTIONS = ClientOptions(backoff_ms=100, max_backoff_ms=500, association_timeout_ms=1_000)


def client_uri(name: str) -> str:
    """What a client calls itself."""
    return f"pcp://{name}/agent"


def _make_ids(boot: Boot) -> Callable[[], str]:
    return lambda: str(uuid.UUID(int=draw_between(boot.random, 0, 2**53) << 64 | draw_between(boot.random, 0, 2**53)))


class BrokerPlace:
    """The broker's core as the world drives it."""

    def __init__(self, boot: Boot) -> None:
        self.broker = Broker(
            PcpSettings(rules=ALLOW_ALL, inventory_batch_ms=100, notice_ttl_ms=TTL_MS), _make_ids(boot)
        )
        self.broker.restore(boot.journal.hops(), boot.now)
        self._streams: set[str] = set()
        self._outgoing: list[wire.Outgoing] = []
        self._now = boot.now

    def receive_accepted(self, stream: str, peer: str, label: str, now: int) -> None:
        """A client opened a connection."""
        del peer
        self._streams.add(stream)
        self.broker.receive_opened(stream, label, "/pcp", now)

    def receive_opened(self, stream: str, peer: str, now: int) -> None:
        """A broker opens no streams."""
        raise AssertionError(f"{stream} to {peer} was opened by a broker at {now}")

    def receive_frame(self, data: bytes, stream: str, now: int) -> None:
        """A frame came, unless the broker closed the connection in the meantime."""
        if stream in self._streams:
            self._now = now
            self.broker.receive_frame(data, stream, now)

    def receive_closed(self, stream: str, code: int, now: int) -> None:
        """A connection ended."""
        del code
        self._now = now
        self._streams.discard(stream)
        self.broker.receive_closed(stream, now)

    def handle_timer(self, now: int) -> None:
        """Do what is due."""
        self._now = now
        self.broker.handle_timer(now)

    def next_timer(self) -> int | None:
        """When something is due."""
        return self.broker.next_timer()

    def events(self) -> Sequence[object]:
        """What happened."""
        outgoing = self.broker.to_send()
        events = self.broker.events()
        for item in outgoing:
            if isinstance(item, wire.CloseLink):
                self._streams.discard(item.link)
                self.broker.receive_closed(item.link, self._now)
        self._outgoing += outgoing
        return [*events, *self.broker.events()]

    def to_send(self) -> Sequence[Outgoing]:
        """Frames and closes."""
        outgoing: list[Outgoing] = []
        for item in self._outgoing:
            if isinstance(item, wire.SendFrames):
                outgoing += [Frame(link, data) for link in item.links for data in item.frames]
            elif isinstance(item, wire.CloseLink):
                outgoing.append(CloseStream(item.link, item.code))
        self._outgoing = []
        return outgoing


class ClientPlace:
    """A client's core as the world drives it; `got` is the application's, which outlives the client."""

    def __init__(self, boot: Boot, got: list[tuple[str, str]]) -> None:
        self.client = Client(client_uri(boot.place), 1, _make_ids(boot), boot.random.random, _OPTIONS)
        self._place = boot.place
        self._got = got
        self.client.start(boot.now)

    def receive_accepted(self, stream: str, peer: str, label: str, now: int) -> None:
        """Nobody opens a stream to a client."""
        raise AssertionError(f"{peer} opened {stream}, labelled {label}, to a client at {now}")

    def receive_opened(self, stream: str, peer: str, now: int) -> None:
        """The connection is open."""
        del peer
        self.client.receive_opened(stream, now)

    def receive_frame(self, data: bytes, stream: str, now: int) -> None:
        """A frame came."""
        self.client.receive_frames([(data, stream, False)], now)

    def receive_closed(self, stream: str, code: int, now: int) -> None:
        """The connection ended."""
        self.client.receive_closed(stream, now, code, "closed")

    def handle_timer(self, now: int) -> None:
        """Do what is due."""
        self.client.handle_timer(now)

    def next_timer(self) -> int | None:
        """When something is due."""
        return self.client.next_timer()

    def events(self) -> Sequence[object]:
        """Nothing that is journaled; what the client decided is for `to_send`."""
        for event in self.client.events():
            match event:
                case MessageReceived():
                    self._got.append((event.message.id, self.client.uri))
                case _:
                    pass
        return ()

    def to_send(self) -> Sequence[Outgoing]:
        """Connections and frames."""
        outgoing: list[Outgoing] = []
        for item in self.client.to_send():
            match item:
                case wire.OpenLink():
                    outgoing.append(OpenStream(item.link, BROKER, self._place))
                case wire.CloseLink():
                    outgoing.append(CloseStream(item.link, abort=True))
                case wire.SendFrames((link,), (data,)):
                    outgoing.append(Frame(link, data))
        return outgoing


class PcpPlay:
    """A broker, clients and their traffic."""

    def __init__(self, world: World, setting: Setting) -> None:
        self.world = world
        self.names = name_places("client", max(2, setting.places))
        self.got: list[tuple[str, str]] = []
        """(message id, client's URI) of all that was handed to an application."""
        self._end_us = world.now + setting.duration_us + (2 * TTL_MS + 1_000) * 1_000
        self._chance = world.randomness.stream("traffic")
        world.add_place(BROKER, BrokerPlace, server=BROKER_URI)
        for name in self.names:
            world.add_place(name, lambda boot: ClientPlace(boot, self.got), server=f"pcp://{name}/server")
        self._plan_traffic(setting.duration_us)

    @property
    def broker(self) -> Broker:
        """The broker's core, which is up."""
        place = self.world.places[BROKER].core
        assert isinstance(place, BrokerPlace), "the broker is down"
        return place.broker

    def _plan_traffic(self, duration_us: int) -> None:
        moment = 0
        while moment < duration_us:
            moment += draw_between(self._chance, *PAUSE_US)
            sender, *others = self._draw_names()
            targets = [client_uri(name) for name in others[: draw_between(self._chance, 1, MAX_TARGETS)]]
            if not draw_between(self._chance, 0, WILDCARD_EVERY - 1):
                targets = [_EVERYBODY]
            ttl_ms = (TTL_MS, SHORT_TTL_MS)[draw_between(self._chance, 0, 1)]
            self.world.command(sender, _make_sending(targets, ttl_ms), after_us=moment)
        for at_us in range(0, duration_us, STALL_EVERY_US):
            name, _ = self._draw_names()[:2]
            self.world.command(BROKER, _make_stall(name, is_full=True), after_us=at_us)
            length_us = draw_between(self._chance, 1, 2 * STALL_EVERY_US)
            self.world.command(BROKER, _make_stall(name, is_full=False), after_us=at_us + length_us)

    def _draw_names(self) -> list[str]:
        """A client and, after it, everybody it may write to, by chance."""
        names = sorted(self.names, key=lambda _: self._chance.random())
        rest = sorted([*names[1:], _GHOST], key=lambda _: self._chance.random())
        return [names[0], *rest]

    # -- what came of it

    def is_settled(self) -> bool:
        """Whether every lifetime is over, and the broker holds nothing any more."""
        return self.world.now >= self._end_us and not self.broker.queued_bytes

    def findings(self, hops: Mapping[str, Sequence[Hop]]) -> list[Finding]:
        """Recipients with no outcome, or several; senders not told; what came twice, or is unknown to the journal."""
        journal = hops[BROKER]
        found = [*check_journals(hops), *_check_outcomes(journal), *_check_notices(journal)]
        pings = _read_pings(journal)
        delivered = {
            (pings[hop.message].id, hop.counterpart)
            for hop in journal
            if hop.message in pings and hop.stage in (Stage.DELIVERED, Stage.REDELIVERED)
        }
        for (identity, uri), count in Counter(self.got).items():
            if count != 1:
                found.append(Finding(rule="once", server=uri, seq=None, detail=f"{identity} came {count} times"))
            if (identity, uri) not in delivered:
                detail = f"{identity} came, and the journal does not know"
                found.append(Finding(rule="journaled_first", server=uri, seq=None, detail=detail))
        return found

    def facts(self) -> dict[str, int]:
        """How much was accepted and handed over."""
        pings = _read_pings(self.world.places[BROKER].hops())
        return {"accepted": len(pings), "received": len(self.got)}


def _check_outcomes(journal: Sequence[Hop]) -> list[Finding]:
    """For each recipient that a message was for, by its bytes or by `routed` hops, there is one outcome."""
    outcomes: dict[Address, Counter[str]] = {}
    owed: dict[Address, set[str]] = {}
    for hop in journal:
        if hop.stage in OUTCOMES:
            outcomes.setdefault(hop.message, Counter())[hop.counterpart or ""] += 1
        elif hop.stage is Stage.ROUTED:
            owed.setdefault(hop.message, set()).add(hop.counterpart or "")
    found = []
    for address, envelope in (_read_pings(journal) | _read_envelopes(journal, Stage.CREATED)).items():
        counts = outcomes.get(address, Counter())
        named = set(envelope.targets) - {_EVERYBODY} if counts else set(envelope.targets)
        for uri in sorted(named | owed.get(address, set()) | counts.keys()):
            if counts[uri] != 1:
                detail = f"{envelope.id} to {uri} has {counts[uri]} outcomes"
                found.append(Finding(rule="one_outcome", server=BROKER_URI, seq=None, detail=detail))
    return found


def _check_notices(journal: Sequence[Hop]) -> list[Finding]:
    """For each message that expired, one `ttl_expired` was made for its sender."""
    notices = Counter(
        envelope.in_reply_to
        for envelope in _read_envelopes(journal, Stage.CREATED).values()
        if envelope.message_type == TTL_EXPIRED
    )
    expired = {hop.message for hop in journal if hop.stage is Stage.EXPIRED}
    return [
        Finding(rule="told", server=BROKER_URI, seq=None, detail=f"{envelope.id} expired, told {count} times")
        for address, envelope in _read_pings(journal).items()
        if (count := notices[envelope.id]) != (address in expired)
    ]


def _read_envelopes(journal: Sequence[Hop], stage: Stage) -> dict[Address, Envelope]:
    return {
        hop.message: decode_frame(hop.raw).envelope for hop in journal if hop.stage is stage and hop.raw is not None
    }


def _read_pings(journal: Sequence[Hop]) -> dict[Address, Envelope]:
    accepted = _read_envelopes(journal, Stage.ACCEPTED)
    return {address: envelope for address, envelope in accepted.items() if envelope.message_type == MESSAGE_TYPE}


def _make_sending(targets: list[str], ttl_ms: int) -> Callable[[ClientPlace, int], None]:
    def act(place: ClientPlace, now: int) -> None:
        if place.client.state is ClientState.ASSOCIATED:
            place.client.send(MESSAGE_TYPE, targets, b"{}", ttl_ms=ttl_ms, now=now)

    return act


def _make_stall(name: str, *, is_full: bool) -> Callable[[BrokerPlace, int], None]:
    """The transport of a client is full, or has room again."""

    def act(place: BrokerPlace, now: int) -> None:
        session = place.broker.registry.by_uri.get(client_uri(name))
        if session is not None:
            if is_full:
                place.broker.receive_paused(session.connection, 0, now)
            else:
                place.broker.receive_resumed(session.connection, now)

    return act


def build(world: World, setting: Setting) -> PcpPlay:
    """The scenario `pcp`."""
    return PcpPlay(world, setting)
