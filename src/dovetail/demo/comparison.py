"""Compares what was injected with what was found: each fault, each alarm that no fault explains, and all clean traffic.

An alarm is a finding with severity error or warning; a note is not. A fault explains it only if it is about that
fault's messages or file, and from a check that such a fault may trip. Everything else is a false alarm, including a
message that was sent correctly and that the audit does not report as arrived; hops that were tampered with are no
longer evidence for or against their messages.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from dovetail.audit.tables import Row
from dovetail.demo.evidence import FINDERS, Tables
from dovetail.demo.faults import Fault, Kind, Ledger
from dovetail.model.outcome import ARRIVED

_LACKING = "gap.server"
_GAP_DIGITS = 16
_ALARMS = ("error", "warning")
MAY_TRIP: dict[Kind, frozenset[str]] = {
    Kind.EXPIRED: frozenset({"delivery.expired", "chain.failed"}),
    Kind.UNAUTHORIZED: frozenset({"delivery.unauthorized", "chain.failed"}),
    Kind.MALFORMED: frozenset({"quarantine.refused", "delivery.rejected"}),
    Kind.NOBODY: frozenset({"delivery.undeliverable"}),
    Kind.SLOW_CONSUMER: frozenset({"delivery.undeliverable", "chain.failed"}),
    Kind.DEAD_AGENT: frozenset({"delivery.undeliverable"}),
    Kind.SHARED_ID: frozenset({"fork.shared_id"}),
    Kind.CYCLE: frozenset({"fork.cycle"}),
    Kind.KILLED_NODE: frozenset(),
    Kind.LOST_RESPONSE: frozenset({"delivery.lost", "chain.copies_differ"}),
    Kind.BAD_SIGNATURE: frozenset({"delivery.rejected", "chain.failed"}),
    Kind.OWNER_FORK: frozenset({"fork.two_creates", "delivery.rejected", "chain.failed", _LACKING}),
    Kind.LATE_PEER: frozenset(),
    Kind.WRONG_WORK: frozenset({"delivery.rejected"}),
    Kind.AGAINST_TIME: frozenset({"fork.against_time"}),
    Kind.DANGLING: frozenset({"gap.nobody"}),
    Kind.CHANGED_BYTE: frozenset(
        {"integrity.altered_row", "delivery.expired", "delivery.overdue", "delivery.no_outcome", "delivery.unreported"}
    ),
    Kind.REMOVED_ROW: frozenset({"integrity.removed_rows"}),
    Kind.REMOVED_FILE: frozenset({"integrity.missing_file", _LACKING}),
}
"""The checks that a fault of each kind may trip."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One fault and where it was found."""

    fault: str
    fabric: str
    injected: str
    found: str | None
    """The table, None if it was not found."""
    row: str = ""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a demo."""

    lines: list[Line]
    false_alarms: list[str]
    sent: int
    arrived: int

    @property
    def found(self) -> int:
        """How many faults were found."""
        return sum(line.found is not None for line in self.lines)

    @property
    def is_fine(self) -> bool:
        """True if every fault was found and nothing else."""
        return self.found == len(self.lines) and not self.false_alarms

    @property
    def verdict(self) -> str:
        """The last line of a demo."""
        alarms = len(self.false_alarms)
        return f"found {self.found} of {len(self.lines)}, {alarms} false alarm{'' if alarms == 1 else 's'}"

    def save(self, path: Path) -> None:
        """Write it to a file."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self)))


def compare(ledger: Ledger, tables: Tables) -> Comparison:
    """Look for each fault, and for alarms that none explains."""
    lines = [_look_for(fault, tables) for fault in ledger.in_order()]
    found = [row for row in tables.rows("findings") if row["severity"] in _ALARMS]
    alarms = [_describe(row) for row in found if not any(_explains(fault, row, tables) for fault in ledger.faults)]
    missing, asked = _missing(ledger, tables)
    alarms += [f"{fabric} {name}: sent correctly, but not reported as arrived" for fabric, name in missing]
    return Comparison(lines=lines, false_alarms=alarms, sent=asked, arrived=asked - len(missing))


def _look_for(fault: Fault, tables: Tables) -> Line:
    evidence = FINDERS[fault.kind](tables, fault)
    return Line(
        fault=fault.kind.value,
        fabric=fault.fabric,
        injected=fault.what,
        found=None if evidence is None else evidence.table,
        row="" if evidence is None else evidence.row,
    )


def _explains(fault: Fault, finding: Row, tables: Tables) -> bool:
    check, detail = finding["check"], str(finding["detail"])
    if check not in MAY_TRIP[fault.kind]:
        return False
    if check == _LACKING:
        # who lacks what: the removed hops, or the refused message, which only its author's journal shows
        lacked = detail.removeprefix("lacks ")[:_GAP_DIGITS]
        return finding["server"] == fault.server and any(
            address.startswith(lacked) for address in (*fault.tampered, *fault.messages)
        )
    if check.startswith("integrity."):
        return finding["server"] == fault.server and detail.startswith(f"{fault.file}: ")
    # the altered row was the only evidence that its message arrived
    return finding["message"] in fault.tampered or finding["message"] in tables.addresses(fault)


def _describe(finding: Row) -> str:
    place = finding["message"] or finding["server"] or ""
    return f"{finding['severity']} {finding['check']} {place[:40]}: {finding['detail']}"


def _missing(ledger: Ledger, tables: Tables) -> tuple[list[tuple[str, str]], int]:
    """Messages sent correctly that did not arrive according to the audit; and the number of messages checked."""
    tampered = {address for fault in ledger.faults for address in fault.tampered}
    ids = {row["message"]: row["id"] for row in tables.rows("messages") if row["fabric"] == "pcp"}
    excused = {ids.get(address) for address in tampered}
    arrived = Counter(
        ids.get(row["message"])
        for row in tables.rows("deliveries")
        if row["fabric"] == "pcp" and row["outcome"] in ARRIVED
    )
    pcp = {number: count for number, count in ledger.sent.pcp.items() if number not in excused}
    missing = [("pcp", number) for number, count in pcp.items() if arrived[number] < count]
    complete = {row["message"] for row in tables.rows("chains") if row["state"] == "complete"}
    won = [address for address in ledger.sent.won if address not in tampered]
    missing += [("won", address) for address in won if address not in complete]
    robbed = {fault.server for fault in ledger.faults if fault.file is not None}
    held = Counter(
        row["message"]
        for row in tables.rows("deliveries")
        if row["fabric"] == "swarm" and row["outcome"] in ARRIVED and row["recipient"] not in robbed
    )
    peers = {row["peer"] for row in tables.rows("coverage") if row["scope"] == "peer"} - robbed
    missing += [("swarm", address) for address in ledger.sent.swarm if held[address] < len(peers)]
    return missing, len(pcp) + len(won) + len(ledger.sent.swarm)
