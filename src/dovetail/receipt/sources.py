"""What receipts are built from: journals, and the servers of a lake."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from dovetail.fabrics import fabric_named
from dovetail.journal.hop_source import MAX_MATCHES, HopSource
from dovetail.lake.location import Location, open_store
from dovetail.model.address import MAX_CANDIDATES, Address, parse_id_prefix, parse_prefix
from dovetail.model.errors import ReceiptError, UsageError
from dovetail.model.fabric import MessageInfo
from dovetail.tlog.checkpoint import SignedCheckpoint


@contextlib.contextmanager
def open_sources(
    journals: Sequence[Path], lake: Location | None, searched: tuple[int, int] | None = None
) -> Iterator[list[HopSource]]:
    """All sources, open as long as the block; a server that is in both counts by its journal.

    Files of the lake outside `searched`, a range of time, are not searched for messages.
    """
    # neither SQLite nor Arrow is loaded before it is needed: verifying a receipt needs none of them
    from dovetail.journal.source import JournalSource

    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(JournalSource.open(path)) for path in journals]
        sources: dict[str, HopSource] = {source.server: source for source in opened}
        if len(sources) != len(opened):
            raise ReceiptError("two of the journals are of the same server")
        if lake is not None:
            from dovetail.lake.reader import open_lake

            for source in open_lake(open_store(lake), searched):
                sources.setdefault(source.server, source)
        yield list(sources.values())


def find_message(sources: Sequence[HopSource], text: str) -> Address:
    """The one message that is called `text`: its address in hex or as `wm:/...`, its id, or a prefix of either.

    UsageError where it can be none of them; ReceiptError where there is no such message, or where there are several.
    An id is looked for in the bytes of all messages, an address in the indexes.
    """
    wanted = parse_id_prefix(text)
    if wanted is not None and "-" in wanted:
        return _choose(text, _find_ids(sources, wanted))
    try:
        prefix = parse_prefix(text)
    except ValueError as error:
        raise UsageError(str(error)) from None
    try:
        found = set[Address]().union(*(prefix.search(source.find, MAX_MATCHES) for source in sources))
        if not found and wanted is not None:
            found = _find_ids(sources, wanted)
        return prefix.choose(found)
    except LookupError as error:
        raise ReceiptError(str(error)) from None


def _choose(text: str, found: set[Address]) -> Address:
    if len(found) == 1:
        return found.pop()
    if not found:
        raise ReceiptError(f"no message has an id that begins with {text}")
    named = ", ".join(sorted(address.hex()[:20] for address in found)[:MAX_CANDIDATES])
    raise ReceiptError(f"several messages have an id that begins with {text}: {named}")


def _find_ids(sources: Iterable[HopSource], wanted: str) -> set[Address]:
    """The messages whose own id begins so."""
    needle = wanted.encode()
    return {
        address
        for source in sources
        for address, raw in source.bodies_between(0, source.size)
        if needle in raw.lower() and has_id(source.fabric, raw, wanted)
    }


def has_id(fabric: str, raw: bytes, wanted: str) -> bool:
    """True if the message says that its id begins so."""
    info = fabric_named(fabric).read(raw)
    return isinstance(info, MessageInfo) and info.id.lower().startswith(wanted)


def check_covers(source: HopSource, signed: SignedCheckpoint) -> SignedCheckpoint:
    """The checkpoint, if the source has all of its hops; else ReceiptError."""
    latest = source.latest_checkpoint()
    if latest is None or latest.size < signed.size:
        size = 0 if latest is None else latest.size
        raise ReceiptError(f"a checkpoint of {signed.size} hops of {source.server}, of which {size} are signed here")
    return signed
