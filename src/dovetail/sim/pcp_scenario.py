"""A broker and its clients in the simulated world: nothing is delivered twice, and each recipient has one outcome.

`places` is the number of clients. They send each other messages, also to all by a wildcard and to a client that does
not exist; now and then a client's transport is full for longer than some messages live. About a quarter of the clients
speak version 2, drawn anew at each start, as if they had been upgraded or rolled back; some data cannot be translated
to it. Some messages are sent again unchanged, and accepted again. In hostile worlds queues are tiny, other settings are
drawn from the seed, and two processes may have one identity, which evict each other. The label of a stream is the name
in the client's certificate. Clients keep no journal: the scenario records what they sent and what was handed to them.
"""

from __future__ import annotations

import functools
import random
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from dovetail.model.address import Address, address_of
from dovetail.model.fabric import MessageInfo, Refused
from dovetail.model.hop import Hop, Observation, Reason, Stage
from dovetail.model.times import SECOND_US
from dovetail.model.wire import LinkId
from dovetail.pcp.broker import Broker
from dovetail.pcp.client import Client, ClientOptions, ClientState
from dovetail.pcp.client_events import MessageReceived
from dovetail.pcp.codec_v1 import VERSION_1
from dovetail.pcp.fabric import FABRIC
from dovetail.pcp.held import HELD_MESSAGE_BYTES
from dovetail.pcp.session import HELD_ENTRY_BYTES, Session
from dovetail.pcp.settings import ALLOW_ALL, BodyRule, PcpSettings, Rule
from dovetail.pcp.uri import BROKER_URI as SERVER_URI
from dovetail.pcp.uri import BROKER_URIS, parse_uri
from dovetail.pcp.vocabulary import (
    ASSOCIATE_REQUEST,
    CLOSE_ASSOCIATION_UNSUCCESSFUL,
    CLOSE_REVOKED,
    ERROR_MESSAGE,
    TTL_EXPIRED,
    VERSION_ERROR,
    is_outcome,
)
from dovetail.sim.core import Boot
from dovetail.sim.invariants import Finding, Owed, check_journals, check_one_outcome
from dovetail.sim.process import ProcessOptions
from dovetail.sim.randomness import draw_between
from dovetail.sim.scenario import Setting, name_places
from dovetail.sim.world import World

BROKER = "broker"
BROKER_URI = "pcp://broker/server"
MESSAGE_TYPE = "http://example.com/ping"
TTL_MS = 3_000
SHORT_TTL_MS = 150
"""Less than some absences of a client and some stalls of a transport."""
WILDCARD_EVERY = 5
PAUSE_US = (20_000, 80_000)
"""How long until the next message is sent."""
STALL_EVERY_US = 300_000
OPERATOR_EVERY_US = 700_000
DENIED_US = (50_000, 1_000_000)
LOOK_US = 20_000
MAX_TARGETS = 3
VERSION_2_SHARE = 0.25
REPEAT_SHARE = 0.3
"""Of messages that name their recipients: sent again, at some time of their life or up to a second after it."""
BINARY_SHARE = 0.1
"""Of messages of version 1: data that is no JSON, which cannot be translated to version 2."""
_GHOST = "ghost"
_EVERYBODY = "pcp://*/agent"
_OPTIONS = ClientOptions(backoff_ms=100, max_backoff_ms=500, association_timeout_ms=1_000)


def client_uri(name: str) -> str:
    """The URI of a client."""
    return f"pcp://{name}/agent"


def _make_ids(boot: Boot) -> Callable[[], str]:
    return lambda: str(uuid.UUID(int=draw_between(boot.random, 0, 2**53) << 64 | draw_between(boot.random, 0, 2**53)))


SETTINGS = PcpSettings(rules=ALLOW_ALL, inventory_batch_ms=100, notice_ttl_ms=TTL_MS)
HOSTILE = {"queue_bytes": 1_500, "memory_bytes": 6_000, "redelivery_messages": 3, "sender_queue_messages": 3}
"""Room for a few messages of some 400 bytes."""
_BODIES_NOT_KEPT = (BodyRule(message_type=MESSAGE_TYPE, bodies="address"),)
TWIN = "twin"
HOSTILE_SHARE = 0.3
"""The share of hostile worlds in which one of these is the case, each by itself."""
LARGEST_HELD_BYTES = HELD_MESSAGE_BYTES + HELD_ENTRY_BYTES + 400
"""Memory of the largest message while it waits for one client."""


class RepeatingClient(Client):
    """A client that can send the same bytes again."""

    def send_again(self, frame: bytes, version: int) -> None:
        """Send a frame of a connection of this version again, if there is one now."""
        if self.state is ClientState.ASSOCIATED and self.version == version:
            self._put(frame)


def _make_broker(settings: PcpSettings, boot: Boot) -> Broker:
    broker = Broker(settings, _make_ids(boot))
    broker.restore(boot.journal.hops(), boot.now)
    return broker


def _close_session(uri: str, broker: Broker, now: int) -> None:
    """As a revoked certificate does."""
    session = broker.registry.by_uri.get(uri)
    if session is not None:
        broker.close(session.connection, CLOSE_REVOKED, "revoked", now)


def _change_rules(rules: tuple[Rule, ...], broker: Broker, now: int) -> None:
    """As SIGHUP does."""
    for link in broker.change_rules(msgspec.structs.replace(broker.settings, rules=rules), now):
        broker.close(link, CLOSE_ASSOCIATION_UNSUCCESSFUL, "no longer authorised", now)


def _close(broker: Broker, link: LinkId, _code: int, unsent_bytes: int, now: int) -> None:
    broker.receive_closed(link, now, unsent_bytes)


def _read(raw: bytes) -> MessageInfo:
    info = FABRIC.read(raw)
    assert not isinstance(info, Refused), info
    return info


def _is_text(frame: bytes) -> bool:
    return frame[0] != VERSION_1


class PcpScenario:
    """A broker, clients and their traffic."""

    def __init__(self, world: World, setting: Setting) -> None:
        self.world = world
        self.names = name_places("client", max(2, setting.places))
        self.got: list[tuple[str, str]] = []
        """(message id, client's URI) of everything handed to an application."""
        self._versions: dict[str, int] = {}
        self._sent: dict[Address, MessageInfo] = {}
        self._end_us = world.now + setting.duration_us + (2 * TTL_MS + 1_000) * 1_000
        self._chance = world.randomness.stream("traffic")
        self._repeats = world.randomness.stream("repeats")
        self.durability = setting.draw_durability(world.randomness)
        self._connected: dict[str, Session] = {}
        self._meant: dict[Address, set[str]] = {}
        """The clients that a wildcard matched: those connected both before and after the message was accepted."""
        unusual = world.randomness.stream("settings")
        self.settings = _draw_hostile(unusual) if setting.is_hostile else SETTINGS
        options = ProcessOptions(
            durability=self.durability,
            max_inbox_bytes=self.settings.inbox_share,
            observer=self._watch_broker,
            on_accepted=self._accept,
            on_closed=_close,
            name_frame=lambda frame: _read(frame).id,
            is_text=_is_text,
        )
        factory = functools.partial(_make_broker, self.settings)
        world.names[SERVER_URI] = world.add_process(BROKER, factory, server=BROKER_URI, options=options)
        self.most_queued_bytes = 0
        world.schedule(LOOK_US, self._look)
        for name in self.names:
            options = ProcessOptions(observer=self._observe)
            world.add_process(name, self._make_client, server=f"pcp://{name}/server", options=options)
        if setting.is_hostile and unusual.random() < HOSTILE_SHARE:
            world.add_process(TWIN, self._make_client, server=f"pcp://{TWIN}/server", options=options)
        self._plan_traffic(setting.duration_us)
        self._plan_operator(setting.duration_us)

    @property
    def broker(self) -> Broker:
        """The broker's core, which must be up."""
        core = self.world.processes[BROKER].core
        assert isinstance(core, Broker), "the broker is down"
        return core

    def _make_client(self, boot: Boot) -> Client:
        uri, is_version_2 = self._uri(boot.name), boot.random.random() < VERSION_2_SHARE
        version = self._versions[uri] = 2 if is_version_2 and uri != self._uri(TWIN) else 1
        client = RepeatingClient(uri, version, _make_ids(boot), boot.random.random, _OPTIONS)
        client.start(boot.now)
        return client

    def _uri(self, name: str) -> str:
        """The URI of a process; the twin has that of the last client."""
        return client_uri(self.names[-1] if name == TWIN else name)

    def _accept(self, broker: Broker, link: LinkId, label: str, now: int) -> None:
        """A client opened a connection; the label stands for its certificate."""
        path = {1: "/pcp", 2: "/pcp2"}[self._versions[label]]
        broker.receive_opened(link, parse_uri(label).name, path, now)

    def _look(self) -> None:
        """Record how much the broker holds, for the memory budget.

        Not during a commit: a link that breaks then returns all that the turn had for it, until its end is fed.
        """
        broker = self.world.processes[BROKER]
        if broker.is_durable:
            self.most_queued_bytes = max(self.most_queued_bytes, self.broker.queued_bytes)
        if self.world.now < self._end_us:
            self.world.schedule(LOOK_US, self._look)

    def _observe(self, name: str, event: object, now: int) -> None:
        del now
        if isinstance(event, MessageReceived):
            self.got.append((event.message.id, self._uri(name)))

    def _watch_broker(self, name: str, event: object, now: int) -> None:
        """Record which clients a wildcard matches, independently of the broker's journal."""
        del name, now
        before, self._connected = self._connected, dict(self.broker.registry.by_uri)
        if not isinstance(event, Observation) or event.stage is not Stage.ACCEPTED:
            return
        if event.message in self._sent and _EVERYBODY in self._sent[event.message].recipients:
            self._meant[event.message] = {uri for uri, session in self._connected.items() if before.get(uri) is session}

    def _plan_traffic(self, duration_us: int) -> None:
        moment = 0
        while moment < duration_us:
            moment += draw_between(self._chance, *PAUSE_US)
            sender, *others = self._draw_names()
            targets = [client_uri(name) for name in others[: draw_between(self._chance, 1, MAX_TARGETS)]]
            if not draw_between(self._chance, 0, WILDCARD_EVERY - 1):
                targets = [_EVERYBODY]
            ttl_ms = (TTL_MS, SHORT_TTL_MS)[draw_between(self._chance, 0, 1)]
            data = b"\xff" if self._chance.random() < BINARY_SHARE else b"{}"
            self.world.command(sender, self.make_sending(targets, ttl_ms, data), after_us=moment)
        for at_us in range(0, duration_us, STALL_EVERY_US):
            name, _ = self._draw_names()[:2]
            length_us = draw_between(self._chance, 1, 2 * STALL_EVERY_US)
            for after_us, is_full in ((at_us, True), (at_us + length_us, False)):
                fill = functools.partial(self.world.processes[BROKER].fill_link, client_uri(name), is_full=is_full)
                self.world.schedule(after_us, fill)

    def _plan_operator(self, duration_us: int) -> None:
        """The operator now and then denies a client its messages or its association, or closes its connection."""
        chance = self.world.randomness.stream("operator")
        moment = 0
        while (moment := moment + draw_between(chance, 0, 2 * OPERATOR_EVERY_US)) < duration_us:
            uri = client_uri(self.names[draw_between(chance, 0, len(self.names) - 1)])
            denied = (MESSAGE_TYPE, ASSOCIATE_REQUEST, None)[draw_between(chance, 0, 2)]
            if denied is None:
                self.world.command(BROKER, functools.partial(_close_session, uri), after_us=moment)
                continue
            rules = (Rule(allow=False, sender=uri, message_type=denied), *ALLOW_ALL)
            until = moment + draw_between(chance, *DENIED_US)
            for after_us, changed in ((moment, rules), (until, ALLOW_ALL)):
                self.world.command(BROKER, functools.partial(_change_rules, changed), after_us=after_us)

    def make_sending(self, targets: list[str], ttl_ms: int, data: bytes = b"{}") -> Callable[[Client, int], None]:
        """An action that sends; in version 2 to the first target, refused if that is a wildcard, and with JSON."""

        def act(client: Client, now: int) -> None:
            if client.state is not ClientState.ASSOCIATED:
                return
            if client.version == 1:
                sent = client.send(MESSAGE_TYPE, targets, data, ttl_ms=ttl_ms, now=now)
            else:
                sent = client.send(MESSAGE_TYPE, targets[:1], b"{}", ttl_ms=ttl_ms, now=now)
            address = address_of(sent.frame)
            self._sent[address] = _read(sent.frame)
            self.world.processes[BROKER].disk.names[address] = sent.id
            if _EVERYBODY not in targets and self._repeats.random() < REPEAT_SHARE:
                self._plan_repeat(client, sent.frame, ttl_ms)

        return act

    def _plan_repeat(self, client: Client, frame: bytes, ttl_ms: int) -> None:
        version = client.version
        after_us = draw_between(self._repeats, 0, ttl_ms * 1_000 + SECOND_US)

        def repeat(client: RepeatingClient, now: int) -> None:
            del now
            client.send_again(frame, version)

        self.world.command(parse_uri(client.uri).name, repeat, after_us=after_us)

    def _draw_names(self) -> list[str]:
        """A random client, followed by all its possible recipients in random order."""
        names = sorted(self.names, key=lambda _: self._chance.random())
        rest = sorted([*names[1:], _GHOST], key=lambda _: self._chance.random())
        return [names[0], *rest]

    # -- results

    def is_settled(self) -> bool:
        """True if every lifetime has ended and the broker holds nothing."""
        return self.world.now >= self._end_us and not self.broker.queued_bytes

    def findings(self, hops: Mapping[str, Sequence[Hop]]) -> list[Finding]:
        """Recipients with no outcome or several; senders not notified; deliveries made twice or not journaled."""
        broker = self.world.processes[BROKER]
        lost = broker.disk.lost if self.durability == "relaxed" else frozenset()
        journal = [hop for hop in hops[BROKER] if hop.message not in lost]
        # the limit is checked after a message has gone to all its recipients, and a full link returns one
        budget = self.settings.memory_bytes // 2 + LARGEST_HELD_BYTES * len(self.names)
        found = []
        if self.most_queued_bytes > budget:
            detail = f"{self.most_queued_bytes} bytes were queued, at most {budget} may be"
            found.append(Finding(rule="memory", server=BROKER_URI, seq=None, detail=detail))
        pings = self._find_accepted(journal)
        found += check_journals(hops)
        times = Counter(hop.message for hop in journal if hop.stage is Stage.ACCEPTED)
        found += _check_outcomes(journal, pings, times, self._meant)
        found += _check_notices(journal, pings, times, hops[BROKER])
        handed = [hop for hop in journal if hop.stage in (Stage.DELIVERED, Stage.REDELIVERED)]
        names = broker.disk.names
        delivered = {(names[hop.message], hop.counterpart) for hop in handed if hop.message in pings}
        lost_names = {names[address] for address in lost if address in names}
        found += [
            Finding(rule="left", server=BROKER_URI, seq=hop.seq, detail=f"{hop.stage} to {hop.counterpart} never left")
            for hop in handed
            if (names[hop.message], hop.counterpart) not in broker.left and hop.counterpart not in BROKER_URIS
        ]
        most = {message.id: times[address] for address, message in pings.items()}
        for (identity, uri), count in Counter(self.got).items():
            if (identity, uri) in broker.doubtful or identity in lost_names:
                continue  # a crash came between the frame and its `delivered`
            if count > most.get(identity, 1):
                found.append(Finding(rule="once", server=uri, seq=None, detail=f"{identity} came {count} times"))
            if (identity, uri) not in delivered:
                detail = f"{identity} came, and the journal does not know"
                found.append(Finding(rule="journaled_first", server=uri, seq=None, detail=detail))
        return found

    def _find_accepted(self, journal: Sequence[Hop]) -> dict[Address, MessageInfo]:
        return {
            hop.message: self._sent[hop.message]
            for hop in journal
            if hop.stage is Stage.ACCEPTED and hop.message in self._sent
        }

    def facts(self) -> dict[str, int]:
        """Numbers of messages accepted and handed over."""
        accepted = self._find_accepted(self.world.processes[BROKER].hops())
        return {"accepted": len(accepted), "received": len(self.got), "full": int(self.durability == "full")}


def _check_outcomes(
    journal: Sequence[Hop],
    pings: Mapping[Address, MessageInfo],
    times: Mapping[Address, int],
    meant: Mapping[Address, set[str]],
) -> list[Finding]:
    """Check for one outcome per recipient, each of the `times` that a message was accepted.

    Recipients come from the bytes, from `routed` hops, or from `meant`.
    """
    outcomes: Counter[Owed] = Counter()
    routed: dict[Address, set[str]] = {}
    messages = {**pings, **_read_created(journal)}
    for hop in journal:
        is_end = is_outcome(hop.stage, hop.counterpart)
        if hop.message in messages and is_end:
            outcomes[messages[hop.message].id, hop.counterpart or ""] += 1
        if is_end or hop.stage is Stage.ROUTED:
            routed.setdefault(hop.message, set()).add(hop.counterpart or "")
    owed: dict[Owed, str] = {}
    for address, message in messages.items():
        members = routed.get(address, set()) | meant.get(address, set())
        named = set(message.recipients) - ({_EVERYBODY} if members else set())
        owed |= dict.fromkeys(((message.id, uri) for uri in named | members), BROKER_URI)
        outcomes.subtract({(message.id, uri): times[address] - 1 for uri in named if times.get(address, 0) > 1})
    return check_one_outcome(owed, outcomes)


def _check_notices(
    journal: Sequence[Hop],
    pings: Mapping[Address, MessageInfo],
    times: Mapping[Address, int],
    everything: Sequence[Hop],
) -> list[Finding]:
    """Check that senders are told of what expired, each time at most once, also if they were away."""
    own = _read_created(everything)
    notices = Counter((message.type, link.parent) for message in own.values() for link in message.links)
    expired = {hop.message for hop in journal if hop.stage is Stage.EXPIRED}
    failed = Counter(
        (hop.message, hop.reason is Reason.NOT_TRANSLATABLE)
        for hop in journal
        if hop.stage is Stage.UNDELIVERABLE and hop.message not in own
    )
    found: list[Finding] = []
    for address, message in pings.items():
        count = notices[TTL_EXPIRED, message.key]
        is_expired = address in expired
        if not is_expired <= count <= is_expired * times[address]:
            found.append(_find_told(None, f"{message.id} expired, told {count} times"))
        for kind, is_about_version in ((VERSION_ERROR, True), (ERROR_MESSAGE, False)):
            count, most = notices[kind, message.key], failed[address, is_about_version]
            if count > most:
                found.append(_find_told(None, f"{message.id} failed {most} times, told {count} times: {kind}"))
    found += [
        _find_told(hop.seq, f"{hop.reason}: a notice did not wait")
        for hop in everything
        if hop.stage is Stage.UNDELIVERABLE and hop.message in own and own[hop.message].type == TTL_EXPIRED
    ]
    return found


def _find_told(seq: int | None, detail: str) -> Finding:
    return Finding(rule="told", server=BROKER_URI, seq=seq, detail=detail)


def _read_created(journal: Sequence[Hop]) -> dict[Address, MessageInfo]:
    return {hop.message: _read(hop.raw) for hop in journal if hop.stage is Stage.CREATED and hop.raw is not None}


def _draw_hostile(chance: random.Random) -> PcpSettings:
    """Tiny queues, and other settings that are unusual."""
    is_unusual = [chance.random() < HOSTILE_SHARE for _ in range(4)]
    return msgspec.structs.replace(
        SETTINGS,
        **HOSTILE,
        hops=is_unusual[0],
        bodies=_BODIES_NOT_KEPT if is_unusual[1] else (),
        clock_skew_ms=500 if is_unusual[2] else 0,
        max_lifetime_ms=TTL_MS // 3 if is_unusual[3] else SETTINGS.max_lifetime_ms,
    )
