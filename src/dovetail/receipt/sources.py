"""What receipts are built from: journals, and the servers of a lake."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from dovetail.journal.hop_source import MAX_MATCHES, HopSource
from dovetail.model.address import Address, AddressPrefix
from dovetail.model.errors import ReceiptError
from dovetail.tlog.checkpoint import SignedCheckpoint


@contextlib.contextmanager
def open_sources(
    journals: Sequence[Path], lake: Path | None, searched: tuple[int, int] | None = None
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
            from dovetail.lake.store import LocalStore

            for source in open_lake(LocalStore(lake), searched):
                sources.setdefault(source.server, source)
        yield list(sources.values())


def find_address(sources: Iterable[HopSource], prefix: AddressPrefix) -> Address:
    """The one message of these sources that begins so; ReceiptError where there is none, or where there are several."""
    try:
        return prefix.choose(set().union(*(prefix.search(source.find, MAX_MATCHES) for source in sources)))
    except LookupError as error:
        raise ReceiptError(str(error)) from None


def check_covers(source: HopSource, signed: SignedCheckpoint) -> SignedCheckpoint:
    """The checkpoint, if the source has all of its hops; else ReceiptError."""
    latest = source.latest_checkpoint()
    if latest is None or latest.size < signed.size:
        size = 0 if latest is None else latest.size
        raise ReceiptError(f"a checkpoint of {signed.size} hops of {source.server}, of which {size} are signed here")
    return signed
