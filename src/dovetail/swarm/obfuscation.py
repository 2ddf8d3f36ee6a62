"""UEP-6: a simple mask against filters that match fixed bytes, optional per peer; it provides no secrecy.

offset  size  field
0       1     h, below 0x20 or above 0xdf
1       1     seed
2       ...   the packet, xored with a 4-byte mask repeated (little-endian dwords)

mask = (c * 256 + seed + 3133079277)^2 xor (size + 3735928559)^2  mod 2^32, c = h or 287 - h
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from dovetail.swarm.refusals import BadIndicator, Truncated

HEADER_BYTES: Final = 2
LOW_LIMIT: Final = 0x20
HIGH_LIMIT: Final = 0xDF

_A: Final = 3133079277
_B: Final = 3735928559
_DWORD: Final = 0xFFFFFFFF


def is_obfuscated(datagram: bytes) -> bool:
    """True if the first byte is outside the range of protocol indicators."""
    return bool(datagram) and not LOW_LIMIT <= datagram[0] <= HIGH_LIMIT


def mask_of(h: int, seed: int, size: int) -> int:
    """The 32-bit mask for a packet of `size` bytes."""
    c = h if h < LOW_LIMIT else 287 - h
    return ((c * 256 + seed + _A) ** 2 ^ (size + _B) ** 2) & _DWORD


def encode_obfuscated(packet: bytes, draws: Iterable[tuple[int, int]]) -> list[bytes]:
    """The packet masked for each pair of `choice` (0-63) and `seed` (0-255), which the sender draws at random."""
    size = len(packet)
    number, ones = int.from_bytes(packet, "little"), _ones(size)
    masked = []
    for choice, seed in draws:
        h = choice if choice < LOW_LIMIT else 287 - choice
        masked.append(bytes((h, seed)) + _to_bytes(number ^ mask_of(h, seed, size) * ones, size))
    return masked


def decode_obfuscated(datagram: bytes) -> bytes:
    """Return the packet inside; raises Truncated or BadIndicator."""
    if len(datagram) < HEADER_BYTES:
        raise Truncated(f"{len(datagram)} bytes, expected at least {HEADER_BYTES}")
    if not is_obfuscated(datagram):
        raise BadIndicator(f"first byte 0x{datagram[0]:02x} is not that of an obfuscated packet")
    size = len(datagram) - HEADER_BYTES
    number = int.from_bytes(datagram[HEADER_BYTES:], "little")
    return _to_bytes(number ^ mask_of(datagram[0], datagram[1], size) * _ones(size), size)


@lru_cache(maxsize=1024)
def _ones(size: int) -> int:
    """1 in every dword that starts within `size` bytes: multiplied by a mask, this repeats the mask."""
    return int.from_bytes(b"\1\0\0\0" * -(-size // 4), "little")


def _to_bytes(number: int, size: int) -> bytes:
    """The first bytes of a number of whole dwords."""
    return number.to_bytes(-(-size // 4) * 4, "little")[:size]
