"""A malicious swarm peer that has the agreement and stays within the protocol.

It answers pulls with messages that were not requested, lists hashes that do not exist and omits those that do,
publishes messages with unresolvable references, replays datagrams, sends endless requests, and uses a new identity for
every peer it talks to and every exchange it starts.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TypeVar

from dovetail.model.wire import Datagrams, Frame, Outgoing
from dovetail.sim.randomness import draw_between
from dovetail.swarm.content import HASH_BYTES, MAX_REFERENCES, Content, MsgHash, Reference, encode_content
from dovetail.swarm.packet import SwarmSigner, decode_packet, encode_packet
from dovetail.swarm.peer_exchange import (
    I_RELAY_TO_YOU,
    NO_PROOF,
    PEER_ADDRESS_BYTES,
    YOU_RELAY_TO_ME,
    Answer,
    Endpoint,
    Hello,
    Introduction,
    PeerAddress,
    decode_exchange,
    encode_answer,
    encode_hello,
)
from dovetail.swarm.peer_exchange import INDICATOR as EXCHANGE
from dovetail.swarm.pow import HashlibSearch, solve
from dovetail.swarm.queries import (
    MAX_HASHES_SENT,
    PullHashes,
    PullRange,
    decode_message,
    encode_pull_hashes,
    encode_pull_range,
    encode_range_list,
)
from dovetail.swarm.refusals import Refusal
from dovetail.swarm.settings import SwarmSettings

PESTER_US = 200_000
BURST = 4
TTL_EPOCHS = 60
_REMEMBERED = 64
_BOTH = I_RELAY_TO_YOU | YOU_RELAY_TO_ME
_SEARCH = HashlibSearch()
_T = TypeVar("_T")


class LyingPeer:
    """A core for the simulated world. It journals nothing. After `until_us` it publishes nothing but still answers."""

    def __init__(
        self, swarm: SwarmSettings, victims: Sequence[str], source: random.Random, now: int, *, until_us: int
    ) -> None:
        self._rules = swarm.rules
        self._signer = SwarmSigner(swarm.key, swarm.slot_slack)
        self._victims = list(victims)
        self._random = source
        self._until_us = until_us
        self._due_us = now
        self._heard: deque[bytes] = deque(maxlen=_REMEMBERED)
        """Datagrams to replay."""
        self._contents: deque[bytes] = deque(maxlen=_REMEMBERED)
        self._tokens: dict[str, bytes] = {}
        self._outgoing: list[Outgoing] = []

    # -- input and output

    def receive_frames(self, frames: Iterable[Frame], now: int) -> None:
        """Answer each datagram falsely."""
        for data, sender, _ in frames:
            self._heard.append(data)
            try:
                message = decode_packet(data, self._signer, now // 1000)
                if message[0] == EXCHANGE:
                    self._exchange(decode_exchange(message), sender, now)
                else:
                    self._answer(message, sender, now)
            except Refusal:
                continue

    def _exchange(self, message: Hello | Answer, sender: str, now: int) -> None:
        if isinstance(message, Answer):
            self._tokens[sender] = message.token
            return
        introductions = tuple(Introduction(self._identity(), Endpoint(self._pick(self._victims))) for _ in range(3))
        answer = Answer(message.ticket, self._bytes(4), self._identity(), _BOTH, introductions)
        self._send(sender, encode_answer(answer), now)

    def _answer(self, message: bytes, sender: str, now: int) -> None:
        match decode_message(message):
            case Content():
                self._contents.append(message)
            case PullHashes(hashes):
                for _ in hashes[:BURST]:
                    self._send(sender, self._pick(self._contents) if self._contents else self._make(now), now)
            case PullRange(ticket, start_ms, end_ms):
                false = [self._hash() for _ in range(draw_between(self._random, 0, BURST))]
                end_ms = draw_between(self._random, start_ms, end_ms)
                self._send(sender, encode_range_list(ticket, start_ms, end_ms, false), now)
            case _:
                pass

    def handle_timer(self, now: int) -> None:
        """Send a burst of unwanted datagrams to one victim."""
        self._due_us = now + PESTER_US
        victim = self._pick(self._victims)
        hello = Hello(self._bytes(4), self._identity(), _BOTH, self._tokens.get(victim, NO_PROOF))
        self._send(victim, encode_hello(hello), now)
        for _ in range(BURST):
            self._pester(victim, now)

    def _pester(self, victim: str, now: int) -> None:
        match draw_between(self._random, 0, 3):
            case 0 if now < self._until_us:
                self._send(victim, self._make(now), now)
            case 1 if self._heard:
                self._outgoing.append(Datagrams(victim, (self._pick(self._heard),)))
            case 2:
                hashes = [self._hash() for _ in range(MAX_HASHES_SENT)]
                self._send(victim, encode_pull_hashes(hashes), now)
            case _:
                self._send(victim, encode_pull_range(self._bytes(4), 0, now // 1000), now)

    def next_timer(self) -> int:
        """When `handle_timer` is due."""
        return self._due_us

    def events(self) -> list[object]:
        """None: it journals nothing."""
        return []

    def to_send(self) -> list[Outgoing]:
        """Datagrams to send now."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    # -- false content

    def _make(self, now: int) -> bytes:
        """A message with valid work and references that can never be resolved."""
        references = tuple(Reference(self._hash(), 0) for _ in range(MAX_REFERENCES))
        content = Content(timestamp_ms=now // 1000, ttl_epochs=TTL_EPOCHS, references=references, payload=b"lie")
        start = draw_between(self._random, 0, 2**53)
        solved = solve(encode_content(content), self._rules.pow_target, start, _SEARCH, run=64)
        assert solved is not None, "without a bound the search ends with a solution"
        return solved

    def _identity(self) -> PeerAddress:
        return PeerAddress(self._bytes(PEER_ADDRESS_BYTES))

    def _hash(self) -> MsgHash:
        return MsgHash(self._bytes(HASH_BYTES))

    def _bytes(self, count: int) -> bytes:
        return bytes(draw_between(self._random, 0, 255) for _ in range(count))

    def _pick(self, options: Sequence[_T]) -> _T:
        return options[draw_between(self._random, 0, len(options) - 1)]

    def _send(self, receiver: str, message: bytes, now: int) -> None:
        packet = encode_packet(message, self._signer, now // 1000, draw_between(self._random, 0, 15))
        self._outgoing.append(Datagrams(receiver, (packet,)))
