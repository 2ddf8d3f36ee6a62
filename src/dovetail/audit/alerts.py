"""Alerts of the following audit: new findings.

The table of findings is compared with the findings already reported, whose hashes are stored next to the tables: a
restart reports nothing twice, however many there are. A finding that disappears and comes back is reported again.

The tables are as of the newest hop of the lake. An unanswered chain may have the newest hop of all, and the stream has
no trigger while nothing is sealed; so waiting chains, up to a limit, are remembered after every run and compared with
the clock in every cycle. That is a timer for each of them, without state in the stream: a restart reads the same chains
from the same table, and the finding that later appears in the tables is the one already reported.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow.compute as pc

from dovetail.audit.tables import Row, Tables, open_tables
from dovetail.lake.location import Location, open_store

DIRECTORY = "_alerts/"
MAX_REPORTED = 10_000_000
"""Maximum number of remembered findings, 16 bytes each; beyond it, no more are reported."""
MAX_WAITING_CHAINS = 1_000_000
INCOMPLETE = "chain.incomplete"
_WAITING = ("awaiting_sender", "awaiting_recipient")
_ALERTING = ("integrity.", "gap.", "fork.", "chain.", "delivery.", "message.bad", "quarantine.unreadable")
_HASH_BYTES = 16


@dataclass(slots=True)
class Alerts:
    """Reports each new finding once. A chain is overdue when it began `overdue_us` ago by this machine's clock."""

    out: Location
    report: Callable[[Row], None]
    overdue_us: int | None = None
    _chains: list[tuple[str, Row]] = field(default_factory=list)
    _chains_of: int = 0

    def update(self, now: dt.datetime | None = None) -> int:
        """Report new findings since the last call; returns their number."""
        tables = open_tables(self.out)
        memory = open_store(self.out)
        *older, newest = ["", *(entry.key for entry in memory.list(DIRECTORY))]
        data = memory.get(newest) if newest else b""
        reported = {data[start : start + _HASH_BYTES] for start in range(0, len(data), _HASH_BYTES)}
        present: set[bytes] = set()
        new: dict[str, Row] = {}

        def note(finding: Row) -> None:
            key = _key(finding)
            digest = hashlib.sha256(key.encode()).digest()[:_HASH_BYTES]
            if digest not in present and len(present) < MAX_REPORTED:
                present.add(digest)
                if digest not in reported:
                    new[key] = finding

        for finding in tables.scan("findings"):
            if finding["severity"] != "note" and finding["check"].startswith(_ALERTING):
                note(finding)
        for finding in self._overdue(tables, now) if now is not None else ():
            note(finding)
        for _, finding in sorted(new.items()):
            self.report(finding)
        if present != reported:
            number = int(newest.rpartition("/")[2] or 0) + 1
            memory.create(f"{DIRECTORY}{number:012d}", b"".join(sorted(present)))
            memory.delete([*older[1:], newest] if newest else [])
        return len(new)

    def _overdue(self, tables: Tables, now: dt.datetime) -> list[Row]:
        """Chains that should be complete by now."""
        if self.overdue_us is None:
            return []
        self._remember_chains(tables)
        limit = (now - dt.timedelta(microseconds=self.overdue_us)).isoformat(timespec="microseconds")
        return [finding for begun, finding in self._chains if begun < limit.replace("+00:00", "Z")]

    def _remember_chains(self, tables: Tables) -> None:
        """Read the waiting chains, if there is a new run."""
        made = tables.run.number
        if made == self._chains_of:
            return
        waiting = pc.field("state").isin(list(_WAITING)) & pc.is_valid(pc.field("begun"))
        chains = tables.scan("chains", waiting, MAX_WAITING_CHAINS)
        self._chains = [(chain["begun"], _incomplete(chain)) for chain in chains]
        self._chains_of = made


def _incomplete(chain: Row) -> Row:
    """The finding that the tables will have for this chain."""
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
