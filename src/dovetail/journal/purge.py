"""Purging: deletes the bytes of expired messages; addresses, hops, digests and proofs stay.

Only bytes below the last checkpoint are purged, so that deleted bytes stay committed to; and, if there is a lake, only
bytes that are sealed into it. Nothing unexpired is ever purged: the bytes themselves decide, not the expiry stored
beside them.
"""

from __future__ import annotations

from collections.abc import Set

from dovetail.journal.expiry import Lifetimes
from dovetail.journal.messages import MessageRow
from dovetail.journal.writer import JournalWriter
from dovetail.model.address import Address
from dovetail.model.fabric import Agreement

MESSAGES_A_STEP = 1000


def purge_step(
    writer: JournalWriter,
    *,
    now_us: int,
    below_seq: int | None = None,
    agreement: Agreement | None = None,
    keep: Set[Address] = frozenset(),
    delay_us: int = 0,
) -> int:
    """Purge up to `MESSAGES_A_STEP` messages that expired `delay_us` ago; returns how many. Repeat until it returns 0.

    `below_seq` limits it to messages whose bytes are on an earlier hop, for example the end of the sealed range. If
    expiry depends on an agreement, nothing is purged without it. Messages in `keep` are not purged.
    """
    over_us = now_us - delay_us
    writer.index()
    latest = writer.reader.latest_checkpoint()
    limit = latest.size if latest is not None else 0
    if below_seq is not None:
        limit = min(limit, below_seq)
    lifetimes = Lifetimes(writer.reader, agreement)
    chosen: list[MessageRow] = []
    for (first_id,) in writer.reader.all(
        "SELECT first_id FROM expiry_index WHERE expires_us <= ? ORDER BY expires_us", (over_us,)
    ):
        block = writer.reader.block_with(first_id)
        rows = (block.row(message_id, with_raw=True) for message_id in range(block.first_id, block.end))
        due = (row for row in rows if row.address not in keep and _is_due(row, over_us, limit))
        chosen += [row for row in due if lifetimes.has_ended(row, over_us)]
        if len(chosen) >= MESSAGES_A_STEP:
            break
    writer.purge_bodies(chosen[:MESSAGES_A_STEP], now_us)
    return len(chosen[:MESSAGES_A_STEP])


def _is_due(row: MessageRow, now_us: int, limit: int) -> bool:
    return row.expires_us is not None and row.expires_us <= now_us and row.body_seq is not None and row.body_seq < limit
