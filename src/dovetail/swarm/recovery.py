"""Restores a peer's messages from its journal, and which ones have expired.

Recent own messages that no other peer is known to have are pushed again: they may never have been sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dovetail.model.address import Address
from dovetail.model.hop import Hop, Stage
from dovetail.swarm.acceptance import Entry, read_entry
from dovetail.swarm.content import is_expired
from dovetail.swarm.dag import Dag
from dovetail.swarm.intake import RELAY_EPOCHS
from dovetail.swarm.refusals import Refusal
from dovetail.swarm.repair import Repair


def restore(
    hops: Iterable[Hop],
    dag: Dag,
    repair: Repair,
    note_expired: Callable[[Address], None],
    epoch_ms: int,
    now: int,
) -> None:
    """Add everything unexpired that these hops accepted or created."""
    unexpired: dict[Address, Entry] = {}
    served: list[Address] = []
    for hop in hops:
        if hop.raw is not None and (entry := _read(hop.raw, hop.message, epoch_ms, now)) is not None:
            unexpired[hop.message] = entry
        is_taken = hop.stage in (Stage.ACCEPTED, Stage.CREATED)
        if hop.message not in unexpired:
            if is_taken:
                note_expired(hop.message)
            continue
        if is_taken:
            entry = unexpired[hop.message]
            if entry.address not in dag:
                _add(entry, hop, dag, repair, epoch_ms, now)
        elif hop.stage is Stage.SERVED:
            served.append(hop.message)
    for address in served:
        repair.own.confirm(address)


def _read(raw: bytes, address: Address, epoch_ms: int, now: int) -> Entry | None:
    """The message that a hop carries; None if it is expired, or was refused as malformed."""
    try:
        entry = read_entry(raw, address, epoch_ms)
    except Refusal:
        return None
    return None if is_expired(entry.expires_ms, now // 1000) else entry


def _add(entry: Entry, hop: Hop, dag: Dag, repair: Repair, epoch_ms: int, now: int) -> None:
    dag.add(entry)
    if hop.at_us // 1000 - entry.timestamp_ms > repair.late_messages.from_age_ms:
        repair.late_messages.note(entry, hop.at_us)
    if hop.stage is Stage.ACCEPTED:
        repair.confirm_referred(entry)
    elif entry.ttl_epochs and now // 1000 - entry.timestamp_ms <= RELAY_EPOCHS * epoch_ms:
        repair.own.add(entry.address, now)
