"""The beginning of a message's address, as a person writes it: hex digits, or a `wm:/` URI.

The beginning of a `wm:/` URI is a range of addresses, whose borders lie between bytes. Whoever searches by whole
leading bytes looks for bytes that every address of the range begins with, and sorts out what lies outside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dovetail.hop import ADDRESS_BYTES, WON_URI_PREFIX, Address, parse_address_prefix, won_uri

_HEX = "0123456789abcdef"
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_WON_DIGITS = len(won_uri(Address(bytes(ADDRESS_BYTES)))) - len(WON_URI_PREFIX)
_MULTIHASH_HEAD = 0x1220 << (8 * ADDRESS_BYTES)


@dataclass(frozen=True, slots=True)
class Beginning:
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


def parse_beginning(text: str) -> Beginning:
    """A whole address or its beginning, from hex or `wm:/...`; ValueError says what is wrong."""
    if text.startswith(WON_URI_PREFIX):
        return _parse_won(text)
    lower = text.lower()
    if not set(lower) <= set(_HEX):
        raise ValueError(f"{text[:80]!r} is neither hex nor a {WON_URI_PREFIX} URI")
    coarse = parse_address_prefix(lower[: len(lower) // 2 * 2])
    fine = tuple(parse_address_prefix(lower + digit) for digit in _HEX) if len(lower) % 2 else (coarse,)
    return Beginning(lower, coarse, fine, bytes.hex)


def _parse_won(text: str) -> Beginning:
    digits = text[len(WON_URI_PREFIX) :]
    if len(digits) > _WON_DIGITS:
        raise ValueError(f"a message URI has {_WON_DIGITS} characters behind {WON_URI_PREFIX}, got {len(digits)}")
    number = 0
    for digit in digits:
        if digit not in _BASE58:
            raise ValueError(f"{digit!r} is not a base58 character")
        number = number * 58 + _BASE58.index(digit)
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
    return Beginning(text, low[:shared], tuple(part.to_bytes(length) for part in parts), won_uri)
