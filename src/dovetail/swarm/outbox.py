"""Messages become datagrams: swarm header, fragments, obfuscation, and the counting of bytes by purpose."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from typing import Final

from dovetail.swarm.contacts import Chance, Contact
from dovetail.swarm.exchange import Endpoint
from dovetail.swarm.fragments import FRAGMENT_BYTES, encode_fragments
from dovetail.swarm.obfuscation import HEADER_BYTES as MASK_BYTES
from dovetail.swarm.obfuscation import encode_obfuscated_each
from dovetail.swarm.packet import SwarmSigner

DRAWN_BITS: Final = 1024
"""A system's source of randomness is too slow to be asked for every packet."""
SUBBAND_BITS: Final = 4
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
        self._drawn = 0
        """Random bits that are left, below a 1 that marks the end."""

    def send(self, message: bytes, receivers: Sequence[Contact], purpose: Purpose, now: int) -> None:
        """One message to each receiver."""
        packet = self._signer.header(now // 1000, self._draw(SUBBAND_BITS)) + message
        pieces = (packet,) if len(packet) <= FRAGMENT_BYTES else encode_fragments(packet)
        masked = receivers if self._masks_all else [contact for contact in receivers if contact.is_masked]
        total = 0
        for piece in pieces:
            total += len(piece) * len(receivers)
            if not masked:
                self._datagrams += [(contact.endpoint, piece) for contact in receivers]
                continue
            total += MASK_BYTES * len(masked)
            draws = [divmod(self._draw(MASK_BITS), 256) for _ in masked]
            self._datagrams += zip(
                [contact.endpoint for contact in masked], encode_obfuscated_each(piece, draws), strict=True
            )
            if len(masked) < len(receivers):
                self._datagrams += [(contact.endpoint, piece) for contact in receivers if not contact.is_masked]
        self.bytes_sent[purpose] += total

    def drain(self) -> list[tuple[Endpoint, bytes]]:
        """All datagrams since the last time."""
        datagrams, self._datagrams = self._datagrams, []
        self.datagrams_sent += len(datagrams)
        return datagrams

    def _draw(self, bits: int) -> int:
        if self._drawn >> bits == 0:
            self._drawn = self._chance.getrandbits(DRAWN_BITS) | 1 << DRAWN_BITS
        drawn = self._drawn & (1 << bits) - 1
        self._drawn >>= bits
        return drawn
