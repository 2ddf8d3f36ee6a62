"""Where the audit's tables show a fault: one lookup per kind. Uses only the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from dovetail.audit.tables import Row, open_tables
from dovetail.demo.faults import Fault, Kind

_SHORT = 12


class Evidence(NamedTuple):
    """A fault as shown by the audit."""

    table: str
    row: str


class Tables:
    """The audit's tables, each read once."""

    def __init__(self, out: Path) -> None:
        self._tables = open_tables(out)
        self._rows: dict[str, list[Row]] = {}
        self._addresses: dict[str, set[str]] | None = None

    def rows(self, name: str) -> list[Row]:
        """All rows of a table, as plain values."""
        if name not in self._rows:
            self._rows[name] = list(self._tables.scan(name))
        return self._rows[name]

    def addresses(self, fault: Fault) -> frozenset[str]:
        """The addresses of a fault's messages; pcp ids are looked up in `messages`."""
        if self._addresses is None:
            self._addresses = {}
            for row in self.rows("messages"):
                if row["fabric"] == "pcp":
                    self._addresses.setdefault(row["id"], set()).add(row["message"])
        found = set(fault.messages)
        for number in fault.ids:
            found |= self._addresses.get(number, set())
        return frozenset(found)


Finder = Callable[[Tables, Fault], Evidence | None]


def _short(address: str) -> str:
    return address[:_SHORT]


def _deliveries(tables: Tables, fault: Fault) -> Iterable[Row]:
    wanted = tables.addresses(fault)
    return (row for row in tables.rows("deliveries") if row["message"] in wanted)


def _outcome(outcome: str, reason: str | None = None, *, every: bool = True) -> Finder:
    """Deliveries of the fault's messages with this outcome: all of them, or at least one."""

    def find(tables: Tables, fault: Fault) -> Evidence | None:
        fit = [
            row
            for row in _deliveries(tables, fault)
            if row["outcome"] == outcome
            and (reason is None or row["reason"] == reason)
            and (fault.recipient is None or row["recipient"] in (fault.recipient, None))
        ]
        expected = tables.addresses(fault)
        if not fit or (every and {row["message"] for row in fit} != expected):
            return None
        number = f"{len(fit)} rows, first " if len(fit) > 1 else ""
        last = fit[0]
        whom = f" for {last['recipient']}" if last["recipient"] else ""
        return Evidence("deliveries", f"{number}{_short(last['message'])} {outcome}{whom}: {last['reason']}")

    return find


def _quarantined(tables: Tables, fault: Fault) -> Evidence | None:
    wanted = tables.addresses(fault)
    for row in tables.rows("quarantine"):
        if row["message"] in wanted and row["server"] == fault.server:
            return Evidence("quarantine", f"hop {row['seq']}, {_short(row['message'])}: {row['reason']}")
    return None


def _fork(kind: str) -> Finder:
    """A row of `forks` whose evidence is exactly the fault's messages, or includes them."""

    def find(tables: Tables, fault: Fault) -> Evidence | None:
        for row in tables.rows("forks"):
            if row["kind"] == kind and set(fault.messages) <= set(row["evidence"]):
                evidence = " ".join(_short(address) for address in row["evidence"])
                return Evidence("forks", f"{kind}: {evidence}")
        return None

    return find


def _recovered(tables: Tables, fault: Fault) -> Evidence | None:
    """All chains of the node are complete, and its journal is intact."""
    inside = f"{fault.server}/"
    chains = [
        row
        for row in tables.rows("chains")
        if row["kind"] == "connection"
        and ((row["sender"] or "").startswith(inside) or (row["recipient"] or "").startswith(inside))
    ]
    complete = [row for row in chains if row["state"] == "complete" and not row["only_at"]]
    verdict = next((row["verdict"] for row in tables.rows("integrity") if row["server"] == fault.server), None)
    if not chains or len(complete) != len(chains) or verdict != "proven":
        return None
    return Evidence("chains", f"{len(complete)} of {len(chains)} chains of the node complete, journal {verdict}")


def _lost_response(tables: Tables, fault: Fault) -> Evidence | None:
    message, response = fault.messages
    lost = any(row["message"] == response and row["outcome"] == "lost" for row in tables.rows("deliveries"))
    for row in tables.rows("chains"):
        if lost and row["message"] == message and row["only_at"] == [fault.server]:
            return Evidence(
                "deliveries", f"{_short(response)} lost; chain of {_short(message)}: s2 only at {fault.server}"
            )
    return None


def _bad_signature(tables: Tables, fault: Fault) -> Evidence | None:
    is_invalid = any(
        row["message"] in fault.messages and row["signature"] == "invalid" for row in tables.rows("messages")
    )
    return _outcome("rejected", "bad_signature")(tables, fault) if is_invalid else None


def _caught_up(tables: Tables, fault: Fault) -> Evidence | None:
    for row in tables.rows("coverage"):
        if row["scope"] == "peer" and row["peer"] == fault.server and row["lacking"] == 0:
            return Evidence("coverage", f"holds {row['holders']} messages, lacks {row['lacking']}")
    return None


def _dangling(tables: Tables, fault: Fault) -> Evidence | None:
    for row in tables.rows("gaps"):
        if row["scope"] == "nobody" and row["child"] in fault.messages:
            return Evidence("gaps", f"{_short(row['child'])} refers to {row['parent']}, which nobody has")
    return None


def _broken(check: str, after: int | None) -> Finder:
    """A break that names the fault's file and, if one row was changed, the position `after` rows from it."""

    def find(tables: Tables, fault: Fault) -> Evidence | None:
        for row in tables.rows("integrity"):
            for one in row["breaks"] or () if row["server"] == fault.server else ():
                is_here = one["file"] == fault.file and (after is None or one["seq"] == (fault.seq or 0) + after)
                if one["check"] == f"integrity.{check}" and is_here:
                    return Evidence("integrity", f"{row['server']} {row['verdict']}: {check} at hop {one['seq']}")
        return None

    return find


FINDERS: dict[Kind, Finder] = {
    Kind.EXPIRED: _outcome("expired", "lifetime_over"),
    Kind.UNAUTHORIZED: _outcome("unauthorized", "unauthorized"),
    Kind.MALFORMED: _quarantined,
    Kind.NOBODY: _outcome("undeliverable", "no_recipient"),
    Kind.SLOW_CONSUMER: _outcome("undeliverable", "slow_consumer", every=False),
    Kind.DEAD_AGENT: _outcome("undeliverable", "no_recipient"),
    Kind.SHARED_ID: _fork("shared_id"),
    Kind.CYCLE: _fork("cycle"),
    Kind.KILLED_NODE: _recovered,
    Kind.LOST_RESPONSE: _lost_response,
    Kind.BAD_SIGNATURE: _bad_signature,
    Kind.OWNER_FORK: _fork("two_creates"),
    Kind.LATE_PEER: _caught_up,
    Kind.WRONG_WORK: _outcome("rejected", "bad_proof_of_work"),
    Kind.AGAINST_TIME: _fork("against_time"),
    Kind.DANGLING: _dangling,
    Kind.CHANGED_BYTE: _broken("altered_row", 0),
    Kind.REMOVED_ROW: _broken("removed_rows", 1),
    Kind.REMOVED_FILE: _broken("missing_file", None),
}
