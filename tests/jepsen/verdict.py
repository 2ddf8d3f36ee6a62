"""Compares what clients saw with what the audit says about every acknowledged message and recipient."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dovetail.model.outcome import PENDING
from jepsen.machine import ENVIRONMENT

ARRIVED = ("delivered", "handed_over")
UNSURE = ("interrupted",)
"""Reasons that mean a message may have arrived."""
QUIET = ("note",)
ABOUT_MESSAGES = ("delivery.", "chain.")
TWO_OUTCOMES = "delivery.two_outcomes"

Row = dict[str, Any]
Key = tuple[str, str]
"""The message (pcp: id, won: URI, swarm: address) and the recipient."""


@dataclass
class Seen:
    """What the clients of one fabric saw."""

    fabric: str
    sent: int = 0
    acknowledged: set[Key] = field(default_factory=set)
    arrived: Counter[Key] = field(default_factory=Counter)
    journals: list[Path] = field(default_factory=list)
    audit_options: list[str] = field(default_factory=list)
    faults: str = ""


@dataclass(frozen=True)
class Verdict:
    """The figures of one fabric."""

    fabric: str
    sent: int
    acknowledged: int
    arrived: int
    doubled: int
    lost: int
    named: int
    unproven: int
    not_named: list[str]
    false_alarms: list[str]
    faults: str

    @property
    def is_fine(self) -> bool:
        return not self.not_named and not self.false_alarms

    def text(self) -> str:
        figures = (
            f"sent {self.sent}, acknowledged {self.acknowledged}, arrived {self.arrived}, doubled {self.doubled}, "
            f"lost {self.lost}, named by the audit {self.named} ({self.unproven} of them as handed over, unproven), "
            f"lost and not named {len(self.not_named)}, false alarms {len(self.false_alarms)}"
        )
        lines = [f"{self.fabric:<6} {figures}", f"       faults: {self.faults}"]
        return "\n".join([*lines, *(f"       ! {line}" for line in [*self.not_named, *self.false_alarms][:20])])


def judge(seen: Seen, directory: Path) -> Verdict:
    """Seal the journals, audit them, and compare the results with what was seen."""
    lake, out = directory / "lake", directory / "tables"
    for journal in seen.journals:
        _dovetail("journal", "seal", journal, "--lake", lake)
    as_of = (dt.datetime.now(dt.UTC) + dt.timedelta(minutes=2)).strftime("%Y-%m-%dT%H:%M:%S")
    _dovetail(
        "audit",
        "run",
        lake,
        "--tables",
        out,
        "--loss-timeout",
        "1",
        "--as-of",
        as_of,
        *seen.audit_options,
        codes=(0, 3),
    )
    return compare(seen, *(_rows(out, table) for table in ("messages", "deliveries", "findings")))


def compare(seen: Seen, messages: Sequence[Row], deliveries: Sequence[Row], findings: Sequence[Row]) -> Verdict:
    """Compare what clients saw with the audit's tables."""
    names = {row["message"]: row["id"] for row in messages if row["fabric"] == seen.fabric}
    told: dict[Key, list[Row]] = {}
    for row in deliveries:
        name = row["message"] if seen.fabric == "swarm" else names.get(row["message"], row["message"])
        told.setdefault((name, row["recipient"]), []).append(row)
    lost = seen.acknowledged - set(seen.arrived)
    outcomes = {key: told[key][0]["outcome"] for key in lost if key in told}
    found = {row["message"] for row in findings if row["severity"] not in QUIET}
    named = {
        key
        for key, outcome in outcomes.items()
        if outcome != "delivered" and (outcome not in PENDING or told[key][0]["message"] in found)
    }
    return Verdict(
        fabric=seen.fabric,
        sent=seen.sent,
        acknowledged=len(seen.acknowledged),
        arrived=len(seen.arrived),
        doubled=sum(count > 1 for count in seen.arrived.values()),
        lost=len(lost),
        named=len(named),
        unproven=sum(outcomes[key] == "handed_over" for key in named),
        not_named=[f"{key[0]} for {key[1]}: {outcomes.get(key, 'no row')}" for key in sorted(lost - named)],
        false_alarms=[*_wrong_outcomes(seen, told), *_wrong_findings(seen, told, findings)],
        faults=seen.faults,
    )


def _wrong_outcomes(seen: Seen, told: Mapping[Key, Sequence[Row]]) -> list[str]:
    """What arrived and is not told to have, and what has several outcomes."""
    wrong = [f"{name} for {whom} has {len(rows)} rows" for (name, whom), rows in told.items() if len(rows) > 1]
    for key in seen.arrived:
        row = told.get(key, [{"outcome": "not in the audit", "reason": None}])[0]
        if row["outcome"] not in ARRIVED and row["reason"] not in UNSURE:
            wrong.append(f"{key[0]} for {key[1]} arrived, and is {row['outcome']} ({row['reason']})")
    return wrong


def _wrong_findings(seen: Seen, told: Mapping[Key, Sequence[Row]], findings: Sequence[Row]) -> list[str]:
    """Findings about servers, which all kept their promises, and about messages that all their recipients have."""
    is_fine: dict[object, bool] = {}
    for key, rows in told.items():
        for row in rows:
            has_arrived = key in seen.arrived and row["outcome"] in ARRIVED
            is_fine[row["message"]] = is_fine.get(row["message"], True) and has_arrived
    return [
        f"{row['check']}: {row['server']}: {row['detail']}"
        for row in findings
        if row["severity"] not in QUIET
        and (
            not row["check"].startswith(ABOUT_MESSAGES)
            or row["check"] == TWO_OUTCOMES
            or is_fine.get(row["message"], False)
        )
    ]


def _rows(out: Path, table: str) -> list[Row]:
    done = _dovetail("audit", "show", table, "--tables", out, "--limit", "0", "--json")
    return [json.loads(line) for line in done.splitlines()]


def _dovetail(*arguments: object, codes: Sequence[int] = (0,)) -> str:
    command = [sys.executable, "-m", "dovetail", *map(str, arguments)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    if done.returncode not in codes:
        raise RuntimeError(f"{' '.join(map(str, arguments[:2]))} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout
