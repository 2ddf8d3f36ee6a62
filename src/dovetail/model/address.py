"""Content addresses: computing, writing, parsing, and searching by a prefix as a person types it.

A prefix of a `wm:/` URI is a range of addresses whose bounds lie between bytes. A search by whole leading bytes looks
for bytes that every address in the range starts with, and filters out the rest.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NewType

from dovetail.fast import twin

Address = NewType("Address", bytes)
"""32 bytes, SHA-256. pcp and swarm: of the wire bytes. won: of the canonical dataset."""

ADDRESS_BYTES = 32
NO_MESSAGE = Address(bytes(ADDRESS_BYTES))
"""Of hops that concern the server itself and no message."""
WON_URI_PREFIX = "wm:/"
_MULTIHASH_SHA256 = b"\x12\x20"
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_BASE58_PAIRS = [a + b for a in _BASE58 for b in _BASE58]
MAX_CANDIDATES = 4
"""How many messages are named where several begin alike."""
_MAX_WON_ID_CHARS = 64
_HEX = "0123456789abcdef"
_MULTIHASH_HEAD = 0x1220 << (8 * ADDRESS_BYTES)


@twin
def address_of(raw: bytes) -> Address:
    """The content address of wire bytes."""
    return hashlib.sha256(raw).digest()  # type: ignore[return-value]  # a NewType is a call, here for every message


def won_uri(address: Address) -> str:
    """`wm:/` with the base58 multihash of a won address."""
    number = int.from_bytes(_MULTIHASH_SHA256 + address)
    pairs: list[str] = []
    # eight digits at a time, since every message is named by every party
    for _ in range(6):
        number, chunk = divmod(number, 58**8)
        for _ in range(4):
            chunk, pair = divmod(chunk, 58**2)
            pairs.append(_BASE58_PAIRS[pair])
    # 34 bytes that begin with 0x12 have 46 digits: the last of the 24 pairs is padding
    pairs.pop()
    pairs.reverse()
    return WON_URI_PREFIX + "".join(pairs)


@dataclass(frozen=True, slots=True)
class AddressPrefix:
    """What an address begins with, as a person wrote it: hex digits, or a `wm:/` URI."""

    text: str
    coarse: bytes
    """Bytes that all such addresses begin with, and perhaps others."""
    fine: tuple[bytes, ...]
    """Bytes that all such addresses begin with one of, and hardly any others."""
    write: Callable[[Address], str]
    """An address in the form of `text`."""

    def matches(self, address: Address) -> bool:
        """True if the address begins with it."""
        return self.write(address).startswith(self.text)

    def search(self, find: Callable[[bytes], Collection[Address]], limit: int) -> set[Address]:
        """The addresses that begin with it; of more than a few, a few.

        `find` gives addresses that begin with some bytes: all of them, or at least `limit`. LookupError where that is
        too few to tell.
        """
        for prefixes in ((self.coarse,), self.fine):
            found: set[Address] = set()
            is_all = True
            for prefix in prefixes:
                part = find(prefix)
                is_all = is_all and len(part) < limit
                found |= {address for address in part if self.matches(address)}
                if len(found) > MAX_CANDIDATES:
                    return found
            if is_all:
                return found
        raise LookupError(f"too many messages begin like {self.text}; give more of the address")

    def choose(self, found: Collection[Address]) -> Address:
        """The one address that was found; LookupError where there is none, or where there are several."""
        if not found:
            raise LookupError(f"no message begins with {self.text}")
        if len(found) > 1:
            names = _tell_apart(sorted(map(self.write, found)))
            more = ", ..." if len(found) > MAX_CANDIDATES else ""
            listed = ", ".join(names[:MAX_CANDIDATES])
            raise LookupError(f"several messages begin with {self.text or 'nothing'}: {listed}{more}")
        return next(iter(found))


def _tell_apart(names: Sequence[str]) -> list[str]:
    """Names cut where they are still different, but not too short to be known again."""
    length = 20
    while len({name[:length] for name in names}) < len(names):
        length += 4
    return [name[:length] for name in names]


def parse_prefix(text: str) -> AddressPrefix:
    """A whole address or its beginning, from hex or `wm:/...`; ValueError says what is wrong."""
    if text.startswith(WON_URI_PREFIX):
        return _parse_won(text)
    lower = text.lower()
    if not set(lower) <= set(_HEX):
        raise ValueError(f"{text[:80]!r} is neither hex, a UUID nor a {WON_URI_PREFIX} URI")
    coarse = parse_address_prefix(lower[: len(lower) // 2 * 2])
    fine = tuple(parse_address_prefix(lower + digit) for digit in _HEX) if len(lower) % 2 else (coarse,)
    return AddressPrefix(lower, coarse, fine, bytes.hex)


_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{0,4}){0,3}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{0,12}")
MIN_ID_CHARS = 8
"""A shorter beginning of an id is not searched for."""


def parse_id_prefix(text: str) -> str | None:
    """The beginning of a message's own id, a UUID, in the form that ids are compared in; None where it can be none."""
    lower = text.lower()
    return lower if len(lower) >= MIN_ID_CHARS and _UUID.fullmatch(lower) else None


def _parse_won(text: str) -> AddressPrefix:
    digits = text[len(WON_URI_PREFIX) :]
    if len(digits) > _WON_DIGITS:
        raise ValueError(f"a message URI has {_WON_DIGITS} characters behind {WON_URI_PREFIX}, got {len(digits)}")
    number = _base58_number(digits)
    width = 58 ** (_WON_DIGITS - len(digits))
    first = max(number * width - _MULTIHASH_HEAD, 0)
    last = min((number + 1) * width - 1 - _MULTIHASH_HEAD, (1 << 8 * ADDRESS_BYTES) - 1)
    if first > last:
        raise ValueError(f"no SHA-256 message URI begins with {text!r}")
    low, high = first.to_bytes(ADDRESS_BYTES), last.to_bytes(ADDRESS_BYTES)
    shared = next((place for place in range(ADDRESS_BYTES) if low[place] != high[place]), ADDRESS_BYTES)
    # with one byte more there are at most 256 parts, of which only the outermost reach beyond the range
    length = min(shared + 1, ADDRESS_BYTES)
    parts = range(int.from_bytes(low[:length]), int.from_bytes(high[:length]) + 1)
    return AddressPrefix(text, low[:shared], tuple(part.to_bytes(length) for part in parts), won_uri)


def parse_address(text: str) -> Address:
    """A full address from hex or `wm:/Qm...`; ValueError says what is wrong."""
    if text.startswith(WON_URI_PREFIX):
        multihash = _base58_decode(text[len(WON_URI_PREFIX) :])
        if multihash[:2] != _MULTIHASH_SHA256 or len(multihash) != 2 + ADDRESS_BYTES:
            raise ValueError(f"{text!r} is not a SHA-256 message URI")
        return Address(multihash[2:])
    prefix = parse_address_prefix(text)
    if len(prefix) != ADDRESS_BYTES:
        raise ValueError(f"an address has {2 * ADDRESS_BYTES} hex digits, got {len(text)}")
    return Address(prefix)


def parse_address_prefix(text: str) -> bytes:
    """The leading whole bytes of an address from hex, or all of it from `wm:/Qm...`."""
    if text.startswith(WON_URI_PREFIX):
        return parse_address(text)
    if len(text) > 2 * ADDRESS_BYTES:
        raise ValueError(f"an address has {2 * ADDRESS_BYTES} hex digits, got {len(text)}")
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ValueError(f"{text[:80]!r} is neither hex nor a {WON_URI_PREFIX} URI") from None


def _base58_decode(text: str) -> bytes:
    if len(text) > _MAX_WON_ID_CHARS:
        raise ValueError(f"message id of {len(text)} characters, expected at most {_MAX_WON_ID_CHARS}")
    number = _base58_number(text)
    leading = len(text) - len(text.lstrip(_BASE58[0]))
    return b"\0" * leading + number.to_bytes((number.bit_length() + 7) // 8)


def _base58_number(text: str) -> int:
    number = 0
    for character in text:
        digit = _BASE58.find(character)
        if digit < 0:
            raise ValueError(f"{character!r} is not a base58 character")
        number = number * 58 + digit
    return number


_WON_DIGITS = len(won_uri(Address(bytes(ADDRESS_BYTES)))) - len(WON_URI_PREFIX)
