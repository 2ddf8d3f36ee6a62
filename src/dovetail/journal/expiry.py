"""When the bytes of a message may be purged, decided by committed data: the bytes, and the hop they came on.

The expiry stored beside a message is only a hint where to look. It is not signed, so it alone never deletes bytes.
"""

from __future__ import annotations

from dovetail.fabrics import fabric_named
from dovetail.journal.messages import MessageRow
from dovetail.journal.reader import JournalReader
from dovetail.model.errors import JournalDamaged
from dovetail.model.fabric import Agreement, ExpiryTemplate, MessageInfo
from dovetail.model.hop import Stage

_TAKEN = frozenset({Stage.ACCEPTED, Stage.CREATED})


class Lifetimes:
    """The lifetimes of one journal's messages. `agreement` is that of its community, if messages need one."""

    def __init__(self, reader: JournalReader, agreement: Agreement | None = None) -> None:
        self._reader = reader
        self._agreement = agreement
        self._fabric = fabric_named(reader.identity.fabric)

    @property
    def are_known(self) -> bool:
        """False if expiry depends on an agreement that is not given."""
        return self._fabric.default_agreement is None or self._agreement is not None

    def end_us(self, raw: bytes | None, size: int | None, stage: Stage) -> int | None:
        """When bytes that came on a hop of this stage, with this size on the wire, may be purged; None is never.

        Refused messages are evidence. Truncated messages, and those that state no lifetime, have no known expiry.
        """
        if raw is None or stage not in _TAKEN or len(raw) != size:
            return None
        return self.stated_us(raw)

    def stated_us(self, raw: bytes) -> int | None:
        """The expiry that the bytes of a whole message state."""
        info = self._fabric.read(raw, self._agreement)
        return info.expires_us if isinstance(info, MessageInfo) else None

    def template(self, raw: bytes) -> ExpiryTemplate | None:
        """Return a reader of the expiry of messages with this layout, equal to `stated_us`."""
        return self._fabric.expiry_template(raw)

    def has_ended(self, message: MessageRow, now_us: int) -> bool:
        """True if the bytes of a message may be purged now."""
        if message.body_seq is None or not self.are_known:
            return False
        hop = next(self._reader.hops(message.body_seq, message.body_seq + 1), None)
        if hop is None or hop.message != message.address:
            raise JournalDamaged(f"{self._reader.path}: hop {message.body_seq} does not bring message {message.id}")
        end_us = self.end_us(message.raw, message.size, hop.stage)
        return end_us is not None and end_us <= now_us
