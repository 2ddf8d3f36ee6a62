"""Messages become datagrams: swarm header, fragments, obfuscation, and the counting of bytes by purpose."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from dovetail.swarm.contacts import Chance, Contact
from dovetail.swarm.exchange import Endpoint
from dovetail.swarm.fragments import FRAGMENT_BYTES, encode_fragments
from dovetail.swarm.obfuscation import HEADER_BYTES as MASK_BYTES
from dovetail.swarm.obfuscation import encode_obfuscated_each
from dovetail.swarm.packet import SwarmSigner

DRAWN_BITS: Final = 1024
"""A system's source of randomness is too slow to be asked for every packet."""
MASK_BITS: Final = 14


class Purpose(enum.StrEnum):
    """Why a datagram is sent."""

    RELAY = "relay"
    REPAIR = "repair"
    UPKEEP = "upkeep"


class Outbox:
    """Collects datagrams until they are drained."""

    def __init__(self, signer: SwarmSigner, chance: Chance, masks_all: bool) -> None:
        self._signer = signer
        self._chance = chance
        self._masks_all = masks_all
        self._datagrams: list[tuple[Endpoint, bytes]] = []
        self.bytes_sent: Counter[Purpose] = Counter()
        self.datagrams_sent = 0
        self._subbands = self._draw_subbands()
        self._drawn = 0
        """Random bits that are left, below a 1 that marks the end."""

    def send(self, message: bytes, receivers: Sequence[Contact], purpose: Purpose, now: int) -> None:
        """One message to each receiver."""
        packet = self._signer.header(now // 1000, next(self._subbands)) + message
        if len(packet) <= FRAGMENT_BYTES:
            self.bytes_sent[purpose] += self._put(packet, receivers)
        else:
            self.bytes_sent[purpose] += sum([self._put(piece, receivers) for piece in encode_fragments(packet)])

    def _put(self, piece: bytes, receivers: Sequence[Contact]) -> int:
        """One datagram to each receiver; how many bytes that are."""
        total = len(piece) * len(receivers)
        if not self._masks_all:
            plain = [(contact.endpoint, piece) for contact in receivers if not contact.is_masked]
            self._datagrams += plain
            if len(plain) == len(receivers):
                return total
        masked = receivers if self._masks_all else [contact for contact in receivers if contact.is_masked]
        draws = [divmod(self._draw(MASK_BITS), 256) for _ in masked]
        self._datagrams += zip(
            [contact.endpoint for contact in masked], encode_obfuscated_each(piece, draws), strict=True
        )
        return total + MASK_BYTES * len(masked)

    def drain(self) -> list[tuple[Endpoint, bytes]]:
        """All datagrams since the last time."""
        datagrams, self._datagrams = self._datagrams, []
        self.datagrams_sent += len(datagrams)
        return datagrams

    def _draw_subbands(self) -> Iterator[int]:
        while True:
            for drawn in self._chance.getrandbits(DRAWN_BITS).to_bytes(DRAWN_BITS // 8):
                yield drawn & 0xF
                yield drawn >> 4

    def _draw(self, bits: int) -> int:
        if self._drawn >> bits == 0:
            self._drawn = self._chance.getrandbits(DRAWN_BITS) | 1 << DRAWN_BITS
        drawn = self._drawn & (1 << bits) - 1
        self._drawn >>= bits
        return drawn
