"""Content addresses: compute, format, parse, and search by the prefix that a person types.

A prefix of a `wm:/` URI is a range of addresses whose bounds do not fall on byte boundaries. The search looks up the
whole leading bytes that all addresses in the range share, then filters the result.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NewType

from dovetail.fast import twin

Address = NewType("Address", bytes)
"""32 bytes, SHA-256: of the wire bytes in pcp and swarm, of the canonical dataset in won."""

ADDRESS_BYTES = 32
NO_MESSAGE = Address(bytes(ADDRESS_BYTES))
"""The address in hops about the server itself rather than a message."""
URI_PREFIX = "wm:/"
"""What the URI form of an address begins with."""
_MULTIHASH_SHA256 = b"\x12\x20"
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_BASE58_PAIRS = [a + b for a in _BASE58 for b in _BASE58]
MAX_CANDIDATES = 4
"""How many messages an error lists when a prefix is ambiguous."""
_MAX_WON_ID_CHARS = 64
_HEX = "0123456789abcdef"
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){0,2}-[0-9a-f]{0,4}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{0,12}")
_UUID_DIGITS = 32
MIN_ID_CHARS = 8
"""Shorter id prefixes are not searched."""
_MULTIHASH_HEAD = 0x1220 << (8 * ADDRESS_BYTES)


@twin
def address_of(raw: bytes) -> Address:
    """The content address of wire bytes."""
    return hashlib.sha256(raw).digest()  # type: ignore[return-value]  # calling the NewType costs time for every message


@twin
def won_uri(address: Address) -> str:
    """`wm:/` with the base58 multihash of a won address."""
    if len(address) != ADDRESS_BYTES:
        raise ValueError(f"an address has {ADDRESS_BYTES} bytes, got {len(address)}")
    number = int.from_bytes(_MULTIHASH_SHA256 + address)
    pairs: list[str] = []
    # eight digits at a time: hot, since every party names every message
    for _ in range(6):
        number, chunk = divmod(number, 58**8)
        for _ in range(4):
            chunk, pair = divmod(chunk, 58**2)
            pairs.append(_BASE58_PAIRS[pair])
    # 34 bytes that start with 0x12 have 46 digits: the last of the 24 pairs is padding
    pairs.pop()
    pairs.reverse()
    return URI_PREFIX + "".join(pairs)


@dataclass(frozen=True, slots=True)
class AddressPrefix:
    """An address prefix as a person wrote it: hex digits, or a `wm:/` URI."""

    text: str
    low: bytes
    """The first address in the range."""
    high: bytes
    """The last address in the range."""
    write: Callable[[Address], str]
    """Formats an address in the notation of `text`."""

    @property
    def coarse(self) -> bytes:
        """The bytes that all addresses in the range start with; others may start with them too."""
        shared = next((place for place in range(ADDRESS_BYTES) if self.low[place] != self.high[place]), ADDRESS_BYTES)
        return self.low[:shared]

    @property
    def fine(self) -> tuple[bytes, ...]:
        """Byte prefixes that cover the range with few addresses outside it.

        They are one byte longer than `coarse`: at most 256, and only the first and last reach beyond the range.
        """
        length = min(len(self.coarse) + 1, ADDRESS_BYTES)
        parts = range(int.from_bytes(self.low[:length]), int.from_bytes(self.high[:length]) + 1)
        return tuple(part.to_bytes(length) for part in parts)

    def matches(self, address: Address) -> bool:
        """True if the address has this prefix."""
        return self.low <= address <= self.high

    def search(self, find: Callable[[bytes], Collection[Address]], limit: int) -> set[Address]:
        """Find the addresses with this prefix; if there are more than MAX_CANDIDATES, only some of them.

        `find` returns the addresses that start with the given bytes: all of them, or at least `limit`. Raises
        LookupError if the results are too incomplete to decide.
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
        """Return the only address found; LookupError if there is none or more than one."""
        if not found:
            raise LookupError(f"no message begins with {self.text}")
        return _choose(found, self.write, f"begin with {self.text or 'nothing'}")


def _choose(found: Collection[Address], write: Callable[[Address], str], what: str) -> Address:
    if len(found) > 1:
        names = _distinguish(sorted(map(write, found)))
        more = ", ..." if len(found) > MAX_CANDIDATES else ""
        raise LookupError(f"several messages {what}: {', '.join(names[:MAX_CANDIDATES])}{more}")
    return next(iter(found))


def _distinguish(names: Sequence[str]) -> list[str]:
    """Shorten names, but keep them distinct and recognisable."""
    length = 20
    while len({name[:length] for name in names}) < len(names):
        length += 4
    return [name[:length] for name in names]


def parse_prefix(text: str) -> AddressPrefix:
    """Parse a whole address or a prefix, from hex or `wm:/...`; ValueError says what is wrong."""
    if text.startswith(URI_PREFIX):
        return _parse_won(text)
    lower, digits = text.lower(), 2 * ADDRESS_BYTES
    if not set(lower) <= set(_HEX):
        raise ValueError(f"{text[:80]!r} is neither hex, a UUID nor a {URI_PREFIX} URI")
    if len(lower) > digits:
        raise ValueError(f"an address has {digits} hex digits, got {len(lower)}")
    low, high = (bytes.fromhex(lower.ljust(digits, edge)) for edge in "0f")
    return AddressPrefix(lower, low, high, bytes.hex)


def _parse_won(text: str) -> AddressPrefix:
    digits = text[len(URI_PREFIX) :]
    if len(digits) > _WON_DIGITS:
        raise ValueError(f"a message URI has {_WON_DIGITS} characters behind {URI_PREFIX}, got {len(digits)}")
    number = _base58_number(digits)
    width = 58 ** (_WON_DIGITS - len(digits))
    first = max(number * width - _MULTIHASH_HEAD, 0)
    last = min((number + 1) * width - 1 - _MULTIHASH_HEAD, (1 << 8 * ADDRESS_BYTES) - 1)
    if first > last:
        raise ValueError(f"no SHA-256 message URI begins with {text!r}")
    return AddressPrefix(text, first.to_bytes(ADDRESS_BYTES), last.to_bytes(ADDRESS_BYTES), won_uri)


@dataclass(frozen=True, slots=True)
class MessageName:
    """How a person names a message: a prefix of its address, of its own id, or of either."""

    text: str
    address: AddressPrefix | None
    id: str | None
    """In lower case. If an address is given too, the id is only used for messages that cannot be found by address."""

    def choose(self, found: Collection[Address]) -> Address:
        """Return the only message found; LookupError if there is none or more than one."""
        if self.address is not None:
            return self.address.choose(found)
        if not found:
            raise LookupError(f"no message has an id that begins with {self.text}")
        return _choose(found, bytes.hex, f"have an id that begins with {self.text}")


def parse_name(text: str) -> MessageName:
    """Parse a message name: hex, `wm:/...`, a UUID, or a prefix of any of them; ValueError if it is none of these.

    Every command, page and function that takes a message parses it here.
    """
    lower = text.lower()
    if _UUID.fullmatch(lower):
        return MessageName(text, None, lower)
    prefix = parse_prefix(text)
    is_id = MIN_ID_CHARS <= len(lower) <= _UUID_DIGITS and set(lower) <= set(_HEX)
    return MessageName(text, prefix, _with_dashes(lower) if is_id else None)


def _with_dashes(digits: str) -> str:
    return "-".join(filter(None, (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])))


def parse_address(text: str) -> Address:
    """Parse a whole address from hex or `wm:/Qm...`; ValueError says what is wrong."""
    if text.startswith(URI_PREFIX):
        multihash = _base58_decode(text[len(URI_PREFIX) :])
        if multihash[:2] != _MULTIHASH_SHA256 or len(multihash) != 2 + ADDRESS_BYTES:
            raise ValueError(f"{text!r} is not a SHA-256 message URI")
        return Address(multihash[2:])
    prefix = parse_address_prefix(text)
    if len(prefix) != ADDRESS_BYTES:
        raise ValueError(f"an address has {2 * ADDRESS_BYTES} hex digits, got {len(text)}")
    return Address(prefix)


def parse_address_prefix(text: str) -> bytes:
    """Parse the leading whole bytes of an address from hex, or the whole address from `wm:/Qm...`."""
    if text.startswith(URI_PREFIX):
        return parse_address(text)
    if len(text) > 2 * ADDRESS_BYTES:
        raise ValueError(f"an address has {2 * ADDRESS_BYTES} hex digits, got {len(text)}")
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ValueError(f"{text[:80]!r} is neither hex nor a {URI_PREFIX} URI") from None


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


_WON_DIGITS = len(won_uri(Address(bytes(ADDRESS_BYTES)))) - len(URI_PREFIX)
