"""Turns messages into datagrams: swarm header, fragments, obfuscation, and byte counts by purpose."""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from dovetail.model.wire import Datagrams
from dovetail.swarm.contacts import Contact, RandomSource
from dovetail.swarm.fragments import FRAGMENT_BYTES, encode_fragments
from dovetail.swarm.obfuscation import HEADER_BYTES as MASK_BYTES
from dovetail.swarm.obfuscation import encode_obfuscated
from dovetail.swarm.packet import SwarmSigner
from dovetail.swarm.peer_exchange import Endpoint

DRAWN_BITS: Final = 1024
"""Bits drawn at a time: the system's random source is too slow to be called for every packet."""
MASK_BITS: Final = 14


class Purpose(enum.StrEnum):
    """Why a datagram is sent."""

    RELAY = "relay"
    REPAIR = "repair"
    UPKEEP = "upkeep"


class Outbox:
    """Collects datagrams until they are drained."""

    def __init__(self, signer: SwarmSigner, random_source: RandomSource, masks_all: bool) -> None:
        self._signer = signer
        self._random = random_source
        self._masks_all = masks_all
        self._datagrams: defaultdict[Endpoint, list[bytes]] = defaultdict(list)
        self.bytes_sent: Counter[Purpose] = Counter()
        self.datagrams_sent = 0
        self._subbands = self._draw_subbands()
        self._drawn = 0
        """Unused random bits, below a 1 bit that marks the end."""

    def send(self, message: bytes, receivers: Sequence[Contact], purpose: Purpose, now: int) -> None:
        """Send one message to each receiver."""
        self.send_all((message,), receivers, purpose, now)

    def send_all(self, messages: Sequence[bytes], receivers: Sequence[Contact], purpose: Purpose, now: int) -> None:
        """Send messages to each receiver, in this order."""
        headers = self._signer.headers(now // 1000)
        pieces = [headers[subband] + message for message, subband in zip(messages, self._subbands, strict=False)]
        if max(map(len, pieces)) > FRAGMENT_BYTES:
            pieces = [piece for packet in pieces for piece in _split(packet)]
        plain = [] if self._masks_all else [contact.endpoint for contact in receivers if not contact.is_masked]
        self.bytes_sent[purpose] += sum(map(len, pieces)) * len(receivers)
        for endpoint in plain:
            self._datagrams[endpoint] += pieces
        if len(plain) == len(receivers):
            return
        masked = [contact.endpoint for contact in receivers if self._masks_all or contact.is_masked]
        self.bytes_sent[purpose] += MASK_BYTES * len(masked) * len(pieces)
        for piece in pieces:
            draws = [divmod(self._draw(MASK_BITS), 256) for _ in masked]
            for endpoint, data in zip(masked, encode_obfuscated(piece, draws), strict=True):
                self._datagrams[endpoint].append(data)

    def drain(self) -> list[Datagrams]:
        """Return all datagrams since the last call, by receiver; those of each receiver are in order."""
        drained = [Datagrams(endpoint, datagrams) for endpoint, datagrams in self._datagrams.items()]
        self._datagrams.clear()
        self.datagrams_sent += sum([len(each.datagrams) for each in drained])
        return drained

    def _draw_subbands(self) -> Iterator[int]:
        while True:
            for drawn in self._random.getrandbits(DRAWN_BITS).to_bytes(DRAWN_BITS // 8):
                yield drawn & 0xF
                yield drawn >> 4

    def _draw(self, bits: int) -> int:
        if self._drawn >> bits == 0:
            self._drawn = self._random.getrandbits(DRAWN_BITS) | 1 << DRAWN_BITS
        drawn = self._drawn & (1 << bits) - 1
        self._drawn >>= bits
        return drawn


def _split(packet: bytes) -> Sequence[bytes]:
    """The datagrams of a packet."""
    return (packet,) if len(packet) <= FRAGMENT_BYTES else encode_fragments(packet)
