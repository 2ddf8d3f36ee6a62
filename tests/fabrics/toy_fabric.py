"""A fourth fabric for the tests: postcards, one line of text each.

card <id> <sender> <recipient> <created ms> [re <id>]: <text>
"""

from __future__ import annotations

import re
from typing import Final

from dovetail.model.address import address_of
from dovetail.model.fabric import Agreement, Fabric, Link, MessageInfo, Refused, Role, Thread
from dovetail.model.hop import Reason, Relation, Stage

_FORM = re.compile(rb"card ([a-z0-9]{1,16}) (\S+) (\S+) ([0-9]{1,15})(?: re ([a-z0-9]{1,16}))?: ([ -~]*)")


class ToyFabric(Fabric):
    """Cards are named by the ids that their senders choose."""

    name = "toy"
    hashes_bytes = True
    key_bytes = None
    thread = Thread.EXCHANGE

    def read(self, raw: bytes, agreement: Agreement | None = None) -> MessageInfo | Refused:
        """One line."""
        match = _FORM.fullmatch(raw)
        if match is None:
            return Refused(Reason.MALFORMED, "no card")
        number, sender, recipient, created_ms, answered, _ = match.groups()
        return MessageInfo(
            address=address_of(raw),
            key=number,
            id=number.decode(),
            type="card",
            version="1",
            sender=sender.decode(),
            recipients=(recipient.decode(),),
            created_us=int(created_ms) * 1000,
            links=(Link(answered, Relation.IN_REPLY_TO),) if answered else (),
            role=Role.FIRST if answered else None,
        )

    def explain(self, raw: bytes) -> dict[str, object]:
        """Its words."""
        match = _FORM.fullmatch(raw)
        return {"error": "malformed", "detail": "no card"} if match is None else {"text": match[6].decode()}

    def not_proven(self, stage: Stage) -> str | None:
        """No one watches the letter box."""
        return "that anybody looked into the letter box" if stage is Stage.DELIVERED else None

    def show_key(self, key: bytes) -> str:
        """The id."""
        return key.decode(errors="replace")


FABRIC: Final = ToyFabric()
