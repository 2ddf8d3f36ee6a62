"""Opening what receipts are built from: journals, and the servers of a lake."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from dovetail.model.errors import ReceiptError
from dovetail.receipt.journal_source import JournalSource
from dovetail.receipt.source import Source


@contextlib.contextmanager
def open_sources(
    journals: Sequence[Path], lake: Path | None, searched: tuple[int, int] | None = None
) -> Iterator[list[Source]]:
    """All sources, open as long as the block; a server that is in both counts by its journal.

    Files of the lake outside `searched`, a range of time, are not searched for messages.
    """
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(JournalSource.open(path)) for path in journals]
        sources: dict[str, Source] = {source.server: source for source in opened}
        if len(sources) != len(opened):
            raise ReceiptError("two of the journals are of the same server")
        if lake is not None:
            # Arrow is loaded only where it is needed
            from dovetail.receipt.lake_source import open_lake

            for source in open_lake(lake, searched):
                sources.setdefault(source.server, source)
        yield list(sources.values())
