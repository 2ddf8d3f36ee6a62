"""What receipts are built from: journals, and the servers of a lake."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dovetail.fabrics import fabric_named
from dovetail.journal.hop_source import MAX_MATCHES, HopSource
from dovetail.lake.location import Location, open_store
from dovetail.model.address import Address, parse_name
from dovetail.model.errors import ReceiptError, UsageError
from dovetail.model.fabric import MessageInfo
from dovetail.tlog.checkpoint import SignedCheckpoint

Progress = Callable[[int, int], None]
_HOPS_PER_STEP = 65_536


@contextlib.contextmanager
def open_sources(
    journals: Sequence[Path], lake: Location | None, searched: tuple[int, int] | None = None
) -> Iterator[list[HopSource]]:
    """Open all sources for the duration of the block; for a server that is in both, its journal is used.

    Lake files outside the time range `searched` are not searched for messages.
    """
    # load SQLite and Arrow only when needed: verifying a receipt needs neither
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


def find_message(sources: Sequence[HopSource], text: str, progress: Progress | None = None) -> Address:
    """Find the one message named `text`: its address in hex or as `wm:/...`, its id, or a prefix of either.

    Raises UsageError if it is none of these, ReceiptError if there is no such message or more than one. Addresses are
    looked up in the indexes; ids are searched for in the bytes of all messages, and `progress` gets the number of hops
    read and the total.
    """
    try:
        name = parse_name(text)
    except ValueError as error:
        raise UsageError(str(error)) from None
    found: set[Address] = set()
    try:
        if name.address is not None:
            found = found.union(*(name.address.search(source.find, MAX_MATCHES) for source in sources))
        if not found and name.id is not None:
            found = _find_ids(sources, name.id, progress)
        return name.choose(found)
    except LookupError as error:
        raise ReceiptError(str(error)) from None


def _find_ids(sources: Sequence[HopSource], wanted: str, progress: Progress | None) -> set[Address]:
    """The messages whose own id has this prefix."""
    needle = wanted.encode()
    found: set[Address] = set()
    total, done = sum(source.size for source in sources), 0
    for source in sources:
        end = source.size
        for first in range(0, end, _HOPS_PER_STEP):
            last = min(first + _HOPS_PER_STEP, end)
            found |= {
                address
                for address, raw in source.bodies_between(first, last)
                if needle in raw.lower() and has_id(source.fabric, raw, wanted)
            }
            done += last - first
            if progress is not None:
                progress(done, total)
    return found


def has_id(fabric: str, raw: bytes, wanted: str) -> bool:
    """True if the id stated by the message has this prefix."""
    info = fabric_named(fabric).read(raw)
    return isinstance(info, MessageInfo) and info.id.lower().startswith(wanted)


def check_covers(source: HopSource, signed: SignedCheckpoint) -> SignedCheckpoint:
    """Return the checkpoint if the source has all of its hops; else raise ReceiptError."""
    latest = source.latest_checkpoint()
    if latest is None or latest.size < signed.size:
        size = 0 if latest is None else latest.size
        raise ReceiptError(f"a checkpoint of {signed.size} hops of {source.server}, of which {size} are signed here")
    return signed
