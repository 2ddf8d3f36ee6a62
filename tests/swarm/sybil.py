"""A hostile peer: answers every hello, requests every link, introduces only its kind, relays and serves nothing."""

from __future__ import annotations

import contextlib
import random

from dovetail.swarm.packet import SwarmSigner, decode_packet, encode_packet
from dovetail.swarm.peer_exchange import (
    I_RELAY_TO_YOU,
    YOU_RELAY_TO_ME,
    Answer,
    Hello,
    Introduction,
    decode_exchange,
    encode_answer,
    encode_hello,
)
from dovetail.swarm.queries import PullRange, decode_message, encode_range_list
from dovetail.swarm.refusals import Refusal
from dovetail.swarm.settings import SwarmSettings

BOTH = I_RELAY_TO_YOU | YOU_RELAY_TO_ME
PESTER_US = 5_000_000


class Sybil:
    """One of many that take the slots of honest peers."""

    def __init__(
        self,
        settings: SwarmSettings,
        address: bytes,
        chance: random.Random,
        now: int,
        victims: list[str],
        kind: list[tuple[bytes, str]],
    ) -> None:
        self._signer = SwarmSigner(settings.key, settings.slot_slack)
        self._address = address
        self._chance = chance
        self._victims = victims
        self._kind = kind
        self._tokens: dict[str, bytes] = {}
        self._due_us = now
        self._outgoing: list[tuple[str, bytes]] = []

    def receive_datagram(self, data: bytes, sender: str, now: int) -> None:
        with contextlib.suppress(Refusal):
            message = decode_packet(data, self._signer, now // 1000)
            if message[:1] == b"\x70":
                self._exchange(decode_exchange(message), sender, now)
            elif isinstance(query := decode_message(message), PullRange):
                self._send(sender, encode_range_list(query.ticket, query.start_ms, query.end_ms, []), now)

    def _exchange(self, message: Hello | Answer, sender: str, now: int) -> None:
        if isinstance(message, Answer):
            self._tokens[sender] = message.token
            return
        kind = [self._kind[int(self._chance.random() * len(self._kind))] for _ in range(6)]
        introductions = tuple(Introduction(address, endpoint) for address, endpoint in kind)
        self._send(sender, encode_answer(Answer(message.ticket, b"toke", self._address, BOTH, introductions)), now)

    def handle_timer(self, now: int) -> None:
        self._due_us = now + PESTER_US
        victim = self._victims[int(self._chance.random() * len(self._victims))]
        hello = Hello(b"tick", self._address, BOTH, self._tokens.get(victim, bytes(4)))
        self._send(victim, encode_hello(hello), now)

    def _send(self, receiver: str, message: bytes, now: int) -> None:
        self._outgoing.append((receiver, encode_packet(message, self._signer, now // 1000, 3)))

    def next_timer(self) -> int:
        return self._due_us

    def events(self) -> list[object]:
        return []

    def to_send(self) -> list[tuple[str, bytes]]:
        outgoing, self._outgoing = self._outgoing, []
        return outgoing
