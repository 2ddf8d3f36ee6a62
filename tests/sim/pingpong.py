"""The smallest fabric with a delivery promise: numbered pings over datagrams, repeated until acknowledged.

    ping  = "P" number:8 from:text     pong = "A" address-of-ping:32

The sender journals a ping as created and forwarded before it goes out. The receiver journals it as accepted and
delivered, and the pong as created and forwarded, before the pong goes out: so a pong is a promise. The sender journals
the pong as accepted. A repeated ping is answered with the same pong and not journaled again. All state is rebuilt from
the journal: pings created and not answered are sent again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dovetail.model.address import ADDRESS_BYTES, Address, address_of
from dovetail.model.hop import Hop, Observation, Reason, Stage
from dovetail.model.wire import Datagrams, Frame, Outgoing
from dovetail.sim.core import Boot, CoreFactory
from dovetail.sim.invariants import Finding, check_journals, check_taken_once
from dovetail.sim.process import ProcessOptions
from dovetail.sim.scenario import Setting, name_places
from dovetail.sim.world import World

PINGPONG = "sim.pingpong:build"
"""The name of this scenario."""

RETRY_US = 250_000
PING_INTERVAL_US = 100_000
MAX_NAME_BYTES = 255
_PING = struct.Struct("<cQ")  # kind, number
_MAX_PING_BYTES = _PING.size + MAX_NAME_BYTES
_APPLICATION = "application"


@dataclass(frozen=True, slots=True, kw_only=True)
class PingDelivered:
    """A ping reached the application here, for the first and only time."""

    number: int
    peer: str
    address: Address


@dataclass(frozen=True, slots=True, kw_only=True)
class PingAcknowledged:
    """The other process promised that it has our ping."""

    peer: str
    address: Address


Event = Observation | PingDelivered | PingAcknowledged


def encode_ping(number: int, sender: str) -> bytes:
    """The wire bytes of a ping."""
    return _PING.pack(b"P", number) + sender.encode()


def decode_ping(data: bytes) -> tuple[int, str]:
    """Number and sender of a ping; ValueError if it is not one."""
    if not _PING.size < len(data) <= _MAX_PING_BYTES or data[:1] != b"P":
        raise ValueError(f"no ping in {len(data)} bytes")
    number: int = _PING.unpack_from(data)[1]
    return number, data[_PING.size :].decode()


def encode_pong(ping: Address) -> bytes:
    """The wire bytes of the answer to a ping."""
    return b"A" + ping


def decode_pong(data: bytes) -> Address:
    """The address of the answered ping; ValueError if it is not a pong."""
    if len(data) != 1 + ADDRESS_BYTES or data[:1] != b"A":
        raise ValueError(f"no pong in {len(data)} bytes")
    return Address(data[1:])


class PingPong:
    """A process that sends `count` pings to its peers in turn, one each `interval_us`, and answers those of others."""

    def __init__(self, name: str, peers: Sequence[str], *, count: int, interval_us: int, now: int) -> None:
        self._name = name
        self._peers = tuple(peers)
        self._count = count if peers else 0
        self._interval_us = interval_us
        self._created = 0
        self._next_ping_us = now
        self._waiting: dict[Address, tuple[str, bytes, int]] = {}  # -> peer, bytes, when to send again
        self._taken: set[Address] = set()
        self._events: list[Event] = []
        self._outgoing: list[Outgoing] = []

    def restore(self, hops: Iterable[Hop], now: int) -> None:
        """Resume what the journal shows as unfinished."""
        unanswered: dict[Address, bytes] = {}
        for hop in hops:
            if hop.stage is Stage.CREATED and hop.raw is not None and hop.raw[:1] == b"P":
                unanswered[hop.message] = hop.raw
                self._created += 1
            elif hop.stage is Stage.FORWARDED and hop.message in unanswered and hop.counterpart is not None:
                self._waiting[hop.message] = (hop.counterpart, unanswered[hop.message], now)
            elif hop.stage is Stage.ACCEPTED and hop.raw is not None and hop.raw[:1] == b"A":
                self._waiting.pop(decode_pong(hop.raw), None)
            elif hop.stage is Stage.ACCEPTED:
                self._taken.add(hop.message)

    def receive_frames(self, frames: Iterable[Frame], now: int) -> None:
        """Handle pings and pongs; anything else is rejected."""
        for data, sender, _ in frames:
            self._receive(data, sender, now)

    def _receive(self, data: bytes, sender: str, now: int) -> None:
        try:
            if data[:1] == b"A":
                self._receive_pong(decode_pong(data), data, sender, now)
            else:
                self._receive_ping(decode_ping(data), data, sender, now)
        except ValueError:
            self._note(now, Stage.REJECTED, address_of(data), sender, raw=data, reason=Reason.MALFORMED)

    def handle_timer(self, now: int) -> None:
        """Create the pings that are due, and repeat those unanswered for too long."""
        while self._created < self._count and self._next_ping_us <= now:
            self._create_ping(now)
        for address, (peer, data, again_us) in self._waiting.items():
            if again_us <= now:
                self._waiting[address] = (peer, data, now + RETRY_US)
                self._outgoing.append(Datagrams(peer, (data,)))

    def next_timer(self) -> int | None:
        """When the next ping or repetition is due."""
        due = min((again_us for _, _, again_us in self._waiting.values()), default=None)
        if self._created < self._count:
            return self._next_ping_us if due is None else min(due, self._next_ping_us)
        return due

    def events(self) -> list[Event]:
        """What happened since the last call."""
        events, self._events = self._events, []
        return events

    def to_send(self) -> list[Outgoing]:
        """Datagrams to send."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def _create_ping(self, now: int) -> None:
        data = encode_ping(self._created, self._name)
        peer = self._peers[self._created % len(self._peers)]
        address = address_of(data)
        self._note(now, Stage.CREATED, address, None, raw=data)
        self._note(now, Stage.FORWARDED, address, peer)
        self._waiting[address] = (peer, data, now + RETRY_US)
        self._outgoing.append(Datagrams(peer, (data,)))
        self._created += 1
        self._next_ping_us += self._interval_us

    def _receive_ping(self, ping: tuple[int, str], data: bytes, sender: str, now: int) -> None:
        address = address_of(data)
        pong = encode_pong(address)
        self._outgoing.append(Datagrams(sender, (pong,)))
        if address in self._taken:
            return
        self._taken.add(address)
        self._note(now, Stage.ACCEPTED, address, sender, raw=data)
        self._note(now, Stage.DELIVERED, address, _APPLICATION)
        self._note(now, Stage.CREATED, address_of(pong), None, raw=pong)
        self._note(now, Stage.FORWARDED, address_of(pong), sender)
        self._events.append(PingDelivered(number=ping[0], peer=sender, address=address))

    def _receive_pong(self, ping: Address, data: bytes, sender: str, now: int) -> None:
        if self._waiting.pop(ping, None) is not None:
            self._note(now, Stage.ACCEPTED, address_of(data), sender, raw=data)
            self._events.append(PingAcknowledged(peer=sender, address=ping))

    def _note(
        self,
        now: int,
        stage: Stage,
        message: Address,
        counterpart: str | None,
        *,
        raw: bytes | None = None,
        reason: Reason | None = None,
    ) -> None:
        counterparts = () if counterpart is None else (counterpart,)
        self._events.append(
            Observation(at_us=now, stage=stage, message=message, counterparts=counterparts, raw=raw, reason=reason)
        )


class PingPongScenario:
    """The scenario: every process pings all others in turn; acknowledged pings must be journaled, none twice."""

    core_class = PingPong

    def __init__(self, world: World, setting: Setting) -> None:
        names = name_places("place", setting.places)
        self._count = max(1, setting.duration_us // PING_INTERVAL_US) if len(names) > 1 else 0
        self._expected = self._count * len(names)
        self._acknowledged: dict[Address, str] = {}
        self._delivered = 0
        self._world = world
        for place, name in enumerate(names):
            peers = names[place + 1 :] + names[:place]
            server = f"swarm://pingpong/{name}"
            world.add_process(name, self._factory(peers), server=server, options=ProcessOptions(observer=self._observe))

    def is_settled(self) -> bool:
        """True if no process waits for a pong and all pings were made."""
        return all(
            place.core is not None and place.core.next_timer() is None for place in self._world.processes.values()
        )

    def findings(self, hops: Mapping[str, Sequence[Hop]]) -> list[Finding]:
        """Acknowledged pings that are not journaled as delivered, and anything journaled twice."""
        findings = check_journals(hops, [check_taken_once])
        delivered = {hop.message for part in hops.values() for hop in part if hop.stage is Stage.DELIVERED}
        for address, name in self._acknowledged.items():
            if address not in delivered:
                server = self._world.processes[name].server
                detail = f"{address.hex()} was acknowledged, but nobody journaled its delivery"
                findings.append(Finding(rule="acknowledged", server=server, seq=None, detail=detail))
        if self.is_settled() and len(delivered) != self._expected:
            detail = f"{len(delivered)} pings delivered, expected {self._expected}"
            findings.append(Finding(rule="complete", server="", seq=None, detail=detail))
        return findings

    def facts(self) -> dict[str, int]:
        """Pings made, and events seen by the applications; a crash may lose the event of what is journaled."""
        return {"pings": self._expected, "delivered": self._delivered, "acknowledged": len(self._acknowledged)}

    def _factory(self, peers: Sequence[str]) -> CoreFactory:
        def build_core(boot: Boot) -> PingPong:
            core = self.core_class(boot.name, peers, count=self._count, interval_us=PING_INTERVAL_US, now=boot.now)
            core.restore(boot.journal.hops(), boot.now)
            return core

        return build_core

    def _observe(self, place: str, event: object, _: int) -> None:
        if isinstance(event, PingAcknowledged):
            self._acknowledged[event.address] = place
        elif isinstance(event, PingDelivered):
            self._delivered += 1


def build(world: World, setting: Setting) -> PingPongScenario:
    """Build the scenario `pingpong`."""
    return PingPongScenario(world, setting)
