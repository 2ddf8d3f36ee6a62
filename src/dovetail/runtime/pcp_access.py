"""The access log: one line per message, `key=value`, values quoted if needed."""

from __future__ import annotations

import json
import logging
import re

from dovetail.pcp.events import MessageHandled

access = logging.getLogger("dovetail.pcp.access")
MAX_TARGETS_SHOWN = 8
_PLAIN = re.compile(r"[\w\-.:/*,+]+", re.ASCII)


def log_message(event: MessageHandled) -> None:
    """Log one message."""
    access.info("%s", format_message(event))


def format_message(event: MessageHandled) -> str:
    """Format one message; targets beyond a few are only counted."""
    targets = ",".join(event.targets[:MAX_TARGETS_SHOWN])
    if len(event.targets) > MAX_TARGETS_SHOWN:
        targets += f",+{len(event.targets) - MAX_TARGETS_SHOWN}"
    fields = {
        "outcome": event.outcome,
        "reason": "" if event.reason is None else event.reason.value,
        "id": event.id,
        "type": event.message_type,
        "sender": event.sender,
        "targets": targets,
        "recipients": str(event.recipients),
        "size": str(event.size),
        "address": event.address.hex(),
        "detail": event.detail,
    }
    return " ".join(f"{name}={_quote(value)}" for name, value in fields.items() if value)


def _quote(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else json.dumps(value)
