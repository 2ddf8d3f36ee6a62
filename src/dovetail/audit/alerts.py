"""Alerts of the following audit: findings that were not there before.

Which findings are new is decided by comparing the table of findings with what was told before, of which a hash each is
kept beside the tables: a restart tells nothing twice, however many there are. What comes back after it was gone is told
again.

The tables speak about the newest hop of the lake. A chain that nobody answers may have the newest hop there is, and no
trigger of the stream comes while nothing is sealed; so chains that wait are remembered after every run, a few of all
there are, and compared with the clock at every look. That is a timer for each of them, without state in the stream: a
restart reads the same chains from the same table, and the finding that the tables have later is the one told before.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.compute as pc

from dovetail.audit.tables import Row, Tables, open_tables
from dovetail.journal.durable_file import replace_file

TOLD = "_alerts/told"
MAX_TOLD = 10_000_000
"""Findings that are remembered, 16 bytes each; while there are more, no further ones are told."""
MAX_WAITING_CHAINS = 1_000_000
INCOMPLETE = "chain.incomplete"
_WAITING = ("awaiting_sender", "awaiting_recipient")
_TELLING = ("integrity.", "gap.", "fork.", "chain.", "delivery.", "message.bad", "quarantine.unreadable")
_HASH_BYTES = 16


@dataclass(slots=True)
class Alerts:
    """Tells each new finding once. A chain is overdue when it began `overdue_us` ago by this machine's clock."""

    out: Path
    tell: Callable[[Row], None]
    overdue_us: int | None = None
    _chains: list[tuple[str, Row]] = field(default_factory=list)
    _chains_of: int = 0

    def update(self, now: dt.datetime | None = None) -> int:
        """Tell what is new since the last time; returns how many there were."""
        path = self.out / TOLD
        path.parent.mkdir(parents=True, exist_ok=True)
        tables = open_tables(self.out)
        data = path.read_bytes() if path.is_file() else b""
        told = {data[start : start + _HASH_BYTES] for start in range(0, len(data), _HASH_BYTES)}
        present: set[bytes] = set()
        new: dict[str, Row] = {}

        def note(finding: Row) -> None:
            key = _key(finding)
            digest = hashlib.sha256(key.encode()).digest()[:_HASH_BYTES]
            if digest not in present and len(present) < MAX_TOLD:
                present.add(digest)
                if digest not in told:
                    new[key] = finding

        for finding in tables.scan("findings"):
            if finding["severity"] != "note" and finding["check"].startswith(_TELLING):
                note(finding)
        for finding in self._overdue(tables, now) if now is not None else ():
            note(finding)
        for _, finding in sorted(new.items()):
            self.tell(finding)
        if present != told:
            replace_file(path, b"".join(sorted(present)))
        return len(new)

    def _overdue(self, tables: Tables, now: dt.datetime) -> list[Row]:
        """Chains that should be complete by now."""
        if self.overdue_us is None:
            return []
        self._remember_chains(tables)
        limit = (now - dt.timedelta(microseconds=self.overdue_us)).isoformat(timespec="microseconds")
        return [finding for begun, finding in self._chains if begun < limit.replace("+00:00", "Z")]

    def _remember_chains(self, tables: Tables) -> None:
        """Read the chains that wait, if the tables were made anew."""
        made = tables.run.number
        if made == self._chains_of:
            return
        waiting = pc.field("state").isin(list(_WAITING)) & pc.is_valid(pc.field("begun"))
        chains = tables.scan("chains", waiting, MAX_WAITING_CHAINS)
        self._chains = [(chain["begun"], _incomplete(chain)) for chain in chains]
        self._chains_of = made


def _incomplete(chain: Row) -> Row:
    """The finding that the tables will have about this chain."""
    words = (chain["state"], chain["type"], "from", chain["sender"])
    return {
        "check": INCOMPLETE,
        "severity": "warning",
        "fabric": chain["fabric"],
        "server": None,
        "message": chain["message"],
        "seq": None,
        "at": chain["begun"],
        "detail": " ".join(word for word in words if word is not None),
    }


def _key(finding: Row) -> str:
    return json.dumps([finding[name] for name in ("check", "server", "message", "seq", "detail")])
