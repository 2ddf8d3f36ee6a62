"""Messages become datagrams: swarm header, fragments, obfuscation, and the counting of bytes by purpose."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable

from dovetail.swarm.contacts import Chance, Contact
from dovetail.swarm.exchange import Endpoint
from dovetail.swarm.fragments import FRAGMENT_BYTES, encode_fragments
from dovetail.swarm.obfuscation import CHOICES, encode_obfuscated
from dovetail.swarm.packet import SwarmSigner


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

    def send(self, message: bytes, receivers: Iterable[Contact], purpose: Purpose, now: int) -> None:
        """One message to each receiver."""
        packet = self._signer.header(now // 1000, self._chance.getrandbits(4)) + message
        pieces = [packet] if len(packet) <= FRAGMENT_BYTES else encode_fragments(packet)
        total = 0
        for contact in receivers:
            for piece in pieces:
                datagram = self._mask(piece) if contact.is_masked or self._masks_all else piece
                self._datagrams.append((contact.endpoint, datagram))
                total += len(datagram)
        self.bytes_sent[purpose] += total

    def drain(self) -> list[tuple[Endpoint, bytes]]:
        """All datagrams since the last time."""
        datagrams, self._datagrams = self._datagrams, []
        self.datagrams_sent += len(datagrams)
        return datagrams

    def _mask(self, piece: bytes) -> bytes:
        bits = self._chance.getrandbits(14)
        return encode_obfuscated(piece, bits % CHOICES, bits >> 6)
