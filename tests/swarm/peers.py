"""One peer under test and helpers to feed it."""

from __future__ import annotations

import random

from dovetail.model.hop import Observation, Reason, Stage
from dovetail.swarm.content import Content, Reference, encode_content, message_address
from dovetail.swarm.fragments import Assembler
from dovetail.swarm.packet import SwarmSigner, decode_packet, encode_packet
from dovetail.swarm.peer import Peer
from dovetail.swarm.peer_exchange import I_RELAY_TO_YOU, YOU_RELAY_TO_ME, Answer, Hello, decode_exchange, encode_hello
from dovetail.swarm.pow import HashlibSearch, solve
from dovetail.swarm.queries import decode_message
from dovetail.swarm.settings import SwarmSettings

START = 1_700_000_000_000_000
SECOND = 1_000_000
SETTINGS = SwarmSettings(name="test", work=4, max_ttl_epochs=100)


def solved(settings: SwarmSettings, content: Content) -> bytes:
    found = solve(encode_content(content), settings.rules.pow_target, 0, HashlibSearch())
    assert found is not None
    return found


def refer(*messages: bytes) -> tuple[Reference, ...]:
    return tuple(Reference(message_address(message)[:8], 0) for message in messages)


def sent_by(peer: Peer) -> list[tuple[str, bytes]]:
    """Everything a peer sends, one datagram at a time."""
    return [(each.endpoint, data) for each in peer.to_send() for data in each.datagrams]


class Bench:
    """A peer, a clock, and neighbours played by the test."""

    def __init__(self, settings: SwarmSettings = SETTINGS, now: int = START, peer_settings=None, **options) -> None:
        self.settings = settings
        self.now = now
        self.peer = Peer(settings, b"\x05" * 20, random.Random(7), now, settings=peer_settings, **options)
        self.signer = SwarmSigner(settings.key)
        self.events: list[object] = []
        self.assemblers: dict[str, Assembler] = {}

    # -- feeding

    def feed(self, message: bytes, sender: str = "198.51.100.1:9") -> list[tuple[str, bytes]]:
        return self.feed_raw(encode_packet(message, self.signer, self.now // 1000, 5), sender)

    def feed_raw(self, data: bytes, sender: str = "198.51.100.1:9") -> list[tuple[str, bytes]]:
        self.peer.receive_datagrams((data,), sender, self.now)
        return self.drain()

    def drain(self) -> list[tuple[str, bytes]]:
        """Messages sent since the last call, without their layers."""
        self.events += self.peer.events()
        found = []
        for destination, data in sent_by(self.peer):
            if data[0] == 0x66:
                packet = self.assemblers.setdefault(destination, Assembler()).add(data, None, self.now)
                if packet is None:
                    continue
                data = packet
            found.append((destination, decode_packet(data, self.signer, self.now // 1000)))
        return found

    def wait(self, seconds: float) -> list[tuple[str, bytes]]:
        """Let time pass, timer by timer."""
        end = self.now + int(seconds * SECOND)
        sent = []
        while (due := self.peer.next_timer()) is not None and due <= end:
            self.now = max(self.now, due)
            self.peer.handle_timer(self.now)
            sent += self.drain()
        self.now = end
        return sent

    def content(self, payload: bytes = b"", *, age_ms: int = 0, ttl: int = 10, references=()) -> bytes:
        timestamp_ms = self.now // 1000 - age_ms
        return solved(
            self.settings,
            Content(timestamp_ms=timestamp_ms, ttl_epochs=ttl, references=references, payload=payload),
        )

    def link(self, endpoint: str, number: int, wishes: int = I_RELAY_TO_YOU | YOU_RELAY_TO_ME) -> None:
        """Play a neighbour that is validated and linked in both directions."""
        address = bytes([number]) * 20
        (answer,) = exchanged(self.feed(encode_hello(Hello(b"tick", address, 0)), endpoint), endpoint, Answer)
        (answer,) = exchanged(
            self.feed(encode_hello(Hello(b"tick", address, wishes, answer.token)), endpoint), endpoint, Answer
        )
        assert answer.granted == wishes

    # -- claims

    def observed(self, stage: Stage) -> list[Observation]:
        return [event for event in self.events if isinstance(event, Observation) and event.stage is stage]

    def seen(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]

    def assert_refused(self, reason: Reason, times: int = 1) -> None:
        assert self.peer.status().refused == {str(reason): times}
        found = self.observed(Stage.REJECTED)
        assert found
        assert {one.reason for one in found} == {reason}


def exchanged(sent: list[tuple[str, bytes]], destination: str, kind: type) -> list:
    found = [decode_exchange(message) for to, message in sent if to == destination and message[:1] == b"\x70"]
    return [one for one in found if isinstance(one, kind)]


def uep12(sent: list[tuple[str, bytes]], destination: str, kind: type) -> list:
    found = [decode_message(message) for to, message in sent if to == destination and message[:1] == b"\x79"]
    return [one for one in found if isinstance(one, kind)]
