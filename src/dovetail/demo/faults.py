"""What the demo did wrong on purpose, recorded as it happens; the audit never sees this.

A `Fault` says what was injected and how to recognise it: the addresses of its messages, or the ids if only the lake
knows the address, the server, the file. `Ledger` also records what was sent correctly, so that the comparison can check
that the audit reports all of it as arrived.
"""

from __future__ import annotations

import enum
from pathlib import Path

import msgspec


class Kind(enum.StrEnum):
    """The kinds of faults, in display order."""

    EXPIRED = "expired"
    UNAUTHORIZED = "unauthorised"
    MALFORMED = "malformed"
    NOBODY = "wildcard to nobody"
    SLOW_CONSUMER = "slow consumer"
    DEAD_AGENT = "agent that dies"
    SHARED_ID = "one id, two contents"
    CYCLE = "cycle"
    KILLED_NODE = "node killed and restarted"
    LOST_RESPONSE = "lost s2"
    BAD_SIGNATURE = "bad signature"
    OWNER_FORK = "fork by an owner"
    LATE_PEER = "late peer"
    WRONG_WORK = "wrong work"
    AGAINST_TIME = "reference against time"
    DANGLING = "reference to nothing"
    CHANGED_BYTE = "changed byte"
    REMOVED_ROW = "removed row"
    REMOVED_FILE = "removed file"


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One injected fault. `messages` are addresses in hex, `ids` are pcp ids."""

    kind: Kind
    fabric: str
    what: str
    at_us: int
    server: str | None = None
    messages: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    recipient: str | None = None
    file: str | None = None
    seq: int | None = None
    tampered: tuple[str, ...] = ()
    """Addresses of messages with hops that were changed or removed in the lake."""


class Sent(msgspec.Struct, kw_only=True):
    """What was sent correctly."""

    pcp: dict[str, int] = msgspec.field(default_factory=dict)
    """id: number of clients that must get it"""
    won: list[str] = msgspec.field(default_factory=list)
    """addresses; each is a chain that must be complete"""
    swarm: list[str] = msgspec.field(default_factory=list)
    """addresses; each must be held by every peer"""


class Ledger(msgspec.Struct, kw_only=True):
    """Everything the demo knows and the audit does not."""

    sent: Sent = msgspec.field(default_factory=Sent)
    faults: list[Fault] = msgspec.field(default_factory=list)

    def note(self, fault: Fault) -> None:
        """Record an injected fault."""
        self.faults.append(fault)

    def in_order(self) -> list[Fault]:
        """Faults ordered by kind."""
        order = list(Kind)
        return sorted(self.faults, key=lambda fault: order.index(fault.kind))

    def save(self, path: Path) -> None:
        """Write it to a file in readable form."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self)))
