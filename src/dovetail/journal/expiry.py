"""When the bytes of a message may be purged, told by what is committed: the bytes themselves, and the hop they came on.

The expiry that is stored beside a message only says where to look. It is no part of what is signed, so nobody's bytes
go because of it.
"""

from __future__ import annotations

from dovetail.fabrics import fabric_named
from dovetail.journal.messages import MessageRow
from dovetail.journal.reader import JournalReader
from dovetail.model.fabric import Agreement, MessageInfo
from dovetail.model.hop import Stage

_TAKEN = frozenset({Stage.ACCEPTED, Stage.CREATED})


class Lifetimes:
    """The lifetimes of one journal's messages. `agreement` is that of its community, where messages need one."""

    def __init__(self, reader: JournalReader, agreement: Agreement | None = None) -> None:
        self._reader = reader
        self._agreement = agreement
        self._fabric = fabric_named(reader.identity.fabric)

    @property
    def are_known(self) -> bool:
        """False where it takes an agreement, which is not given, to know them."""
        return self._fabric.default_agreement is None or self._agreement is not None

    def end_us(self, raw: bytes | None, size: int | None, stage: Stage) -> int | None:
        """When bytes may go that came on a hop of this stage and had this size on the wire; None is never.

        What was refused is evidence. What was cut, or states no lifetime, does not say.
        """
        if raw is None or stage not in _TAKEN or len(raw) != size:
            return None
        info = self._fabric.read(raw, self._agreement)
        return info.expires_us if isinstance(info, MessageInfo) else None

    def has_ended(self, message: MessageRow, now_us: int) -> bool:
        """Whether the bytes of a message may go by now."""
        if message.body_seq is None or not self.are_known:
            return False
        hop = next(self._reader.hops(message.body_seq, message.body_seq + 1))
        end_us = self.end_us(message.raw, message.size, hop.stage)
        return end_us is not None and end_us <= now_us
