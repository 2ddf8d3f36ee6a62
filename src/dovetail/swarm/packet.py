"""UEP-10: the swarm header, with a signature that rotates every 16.384 seconds.

    offset  size  field
    0       1     0x62, the protocol indicator
    1       7     swarm_sig
    8       ...   one message

    swarm_sig = crc64(swarm address [+ secret], initial value (slot & 0xfffffff) | (subband << 28)) >> 8

slot = unix ms / 16384, subband = four bits chosen at random by the sender. The signature distinguishes swarms at the
cost of one table look-up; it is no proof of membership, since a checksum can be inverted. A receiver keeps the
signatures of the previous, current and next slot by its own clock, 16 subbands each: two peers can receive from each
other while their clocks differ by at most 16 to 32 s. `slot_slack` widens the table on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dovetail.swarm.refusals import BadIndicator, Truncated, UnknownSwarm

INDICATOR: Final = 0x62
SIGNATURE_BYTES: Final = 7
HEADER_BYTES: Final = 1 + SIGNATURE_BYTES
SLOT_MS: Final = 16_384
SUBBANDS: Final = 16
SLOT_MASK: Final = 0xFFFFFFF
ADDRESS_BYTES: Final = 20
SECRET_BYTES: Final = 20
SLOT_SLACK: Final = 1

_POLYNOMIAL: Final = 0xC96C5795D7870F42


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE: Final = _crc_table()


def crc64(data: bytes, initial: int) -> int:
    """Reflected ECMA-182 with the initial value as given and no final xor."""
    value = initial
    for byte in data:
        value = (value >> 8) ^ _TABLE[(value ^ byte) & 0xFF]
    return value


def swarm_signature(key: bytes, slot: int, subband: int) -> bytes:
    """The swarm's 7 bytes in this slot and subband; `key` is the address, with the secret if the swarm is private."""
    return (crc64(key, (slot & SLOT_MASK) | subband << 28) >> 8).to_bytes(SIGNATURE_BYTES, "little")


def swarm_key(address: bytes, secret: bytes | None = None) -> bytes:
    """The key of signatures: the 20-byte address, followed by the 20-byte secret of a private swarm."""
    if len(address) != ADDRESS_BYTES:
        raise ValueError(f"swarm address of {len(address)} bytes, expected {ADDRESS_BYTES}")
    if secret is None:
        return address
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"swarm secret of {len(secret)} bytes, expected {SECRET_BYTES}")
    return address + secret


def check_header(packet: bytes) -> None:
    """Raise Truncated or BadIndicator if there is no swarm header."""
    if len(packet) < HEADER_BYTES:
        raise Truncated(f"{len(packet)} bytes, expected at least {HEADER_BYTES}")
    if packet[0] != INDICATOR:
        raise BadIndicator(f"first byte 0x{packet[0]:02x}, expected 0x{INDICATOR:02x}")


class SwarmSigner:
    """Creates and recognises the signatures of one swarm; the table is recomputed when the slot changes."""

    __slots__ = ("_headers", "_key", "_known", "_known_headers", "_slack", "_slot")

    def __init__(self, key: bytes, slot_slack: int = SLOT_SLACK) -> None:
        self._key = key
        self._slack = slot_slack
        self._slot = -1
        self._headers: list[bytes] = []
        self._known: dict[bytes, int] = {}
        self._known_headers: frozenset[bytes] = frozenset()

    def _change_slot(self, now_ms: int) -> None:
        slot = self._slot = now_ms // SLOT_MS
        self._known = {
            swarm_signature(self._key, slot + offset, subband): subband
            for offset in range(-self._slack, self._slack + 1)
            for subband in range(SUBBANDS)
        }
        self._known_headers = frozenset([bytes([INDICATOR]) + signature for signature in self._known])
        self._headers = [bytes([INDICATOR]) + swarm_signature(self._key, slot, band) for band in range(SUBBANDS)]

    def headers(self, now_ms: int) -> Sequence[bytes]:
        """The 8 bytes to prepend to a message, by subband."""
        if now_ms // SLOT_MS != self._slot:
            self._change_slot(now_ms)
        return self._headers

    def known_headers(self, now_ms: int) -> frozenset[bytes]:
        """The valid headers of packets of this swarm, for the hot path."""
        if now_ms // SLOT_MS != self._slot:
            self._change_slot(now_ms)
        return self._known_headers

    def subband_of(self, packet: bytes, now_ms: int) -> int:
        """The subband of a packet of this swarm; raises Truncated, BadIndicator or UnknownSwarm."""
        check_header(packet)
        if now_ms // SLOT_MS != self._slot:
            self._change_slot(now_ms)
        subband = self._known.get(packet[1:HEADER_BYTES])
        if subband is None:
            raise UnknownSwarm(f"swarm signature {packet[1:HEADER_BYTES].hex()} is not one of ours now")
        return subband


def encode_packet(message: bytes, signer: SwarmSigner, now_ms: int, subband: int) -> bytes:
    """A message with the swarm header in front."""
    return signer.headers(now_ms)[subband % SUBBANDS] + message


def decode_packet(packet: bytes, signer: SwarmSigner, now_ms: int) -> bytes:
    """The message of a packet of this swarm."""
    signer.subband_of(packet, now_ms)
    return packet[HEADER_BYTES:]
