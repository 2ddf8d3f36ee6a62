"""Finding the one message that a person means by the beginning of its address.

Sources look for whole leading bytes, and what lies outside is sorted out. Where that gave more than a source tells, the
beginning is looked for in parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dovetail.journal.hop_source import MAX_MATCHES, HopSource
from dovetail.model.address import Address, AddressPrefix
from dovetail.model.errors import ReceiptError

MAX_CANDIDATES = 4
"""How many messages an ambiguous beginning names."""


def find_address(sources: Iterable[HopSource], beginning: AddressPrefix) -> Address:
    """The one address that begins with it; ReceiptError where there is none, or where there are several."""
    found: set[Address] = set()
    for source in sources:
        found |= _find(source, beginning)
    if not found:
        raise ReceiptError(f"no journal here knows a message {beginning.text}")
    if len(found) > 1:
        names = _tell_apart(sorted(beginning.write(address) for address in found))
        more = ", ..." if len(found) > MAX_CANDIDATES else ""
        raise ReceiptError(
            f"several messages begin with {beginning.text or 'nothing'}: {', '.join(names[:MAX_CANDIDATES])}{more}"
        )
    return found.pop()


def _find(source: HopSource, beginning: AddressPrefix) -> set[Address]:
    """Addresses of one source; of more than a few, a few."""
    for prefixes in ((beginning.coarse,), beginning.fine):
        found: set[Address] = set()
        is_all = True
        for prefix in prefixes:
            part = source.find(prefix)
            is_all = is_all and len(part) < MAX_MATCHES
            found |= {address for address in part if beginning.matches(address)}
            if len(found) > MAX_CANDIDATES:
                return found
        if is_all:
            return found
    raise ReceiptError(f"too many messages of {source.server} begin like {beginning.text}; give more of its address")


def _tell_apart(names: Sequence[str]) -> list[str]:
    """Names cut where they are still different, but not too short to be known again."""
    length = 20
    while len({name[:length] for name in names}) < len(names):
        length += 4
    return [name[:length] for name in names]
