"""The latest audit: its findings, and what its tables say of servers and chains; read anew when a run replaced them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from dovetail.audit.message_trace import describe_delivery
from dovetail.audit.tables import Tables
from dovetail.model.address import Address
from dovetail.model.errors import DovetailError
from dovetail.model.outcome import ARRIVED, PENDING
from dovetail.report.arrays import micros
from dovetail.report.guide import rank_severity
from dovetail.report.numbers import SEVERITIES

PAGE_ROWS = 100
MAX_VERDICTS = 5
_KINDS = ("bad", "unsure", "good")


@dataclass(frozen=True, slots=True)
class Overview:
    """What an audit found, in numbers; `problem` says why there are none."""

    problem: str = ""
    as_of_us: int | None = None
    checks: Sequence[dict[str, Any]] = ()
    servers: Sequence[dict[str, Any]] = ()
    chains: dict[str, int] = field(default_factory=dict)
    gaps: int = 0
    forks: int = 0

    def count(self, severity: str) -> int:
        """How many findings of a severity there are."""
        return sum(row["count"] for row in self.checks if row["severity"] == severity)


def survey(root: Path) -> Overview:
    """The numbers of the tables in `root`."""
    try:
        tables = Tables.open(root)
        checks = _count_checks(tables.read("findings", ["check", "severity", "at", "message"]))
        columns = ["fabric", "server", "verdict", "hops", "signed_hops", "proven_hops", "missing_hops"]
        servers = tables.read("integrity", columns).sort_by("server").to_pylist()
        states = tables.read("chains", ["state"]).group_by("state").aggregate([([], "count_all")]).to_pylist()
        return Overview(
            as_of_us=tables.run.as_of_us,
            checks=checks,
            servers=servers,
            chains={row["state"]: row["count_all"] for row in sorted(states, key=lambda row: -row["count_all"])},
            gaps=tables.count("gaps"),
            forks=tables.count("forks"),
        )
    except (DovetailError, OSError, pa.ArrowException, KeyError) as error:
        # a run replaces the tables one after the other; the next look finds them whole again
        return Overview(problem=str(error))


def _count_checks(findings: pa.Table) -> list[dict[str, Any]]:
    """Findings by check, the gravest first, with when they were first and last made, and the newest message."""
    findings = findings.set_column(findings.schema.get_field_index("at"), "at", micros(findings["at"]))
    found = findings.group_by(["check", "severity"]).aggregate([([], "count_all"), ("at", "min"), ("at", "max")])
    known = findings.filter(pc.is_valid(findings["message"])).sort_by([("at", "ascending")])
    newest = dict(zip(known["check"].to_pylist(), known["message"].to_pylist(), strict=True))
    checks = [
        {
            "check": row["check"],
            "severity": row["severity"],
            "count": row["count_all"],
            "first_us": row["at_min"],
            "last_us": row["at_max"],
            "message": newest[row["check"]].hex() if row["check"] in newest else None,
        }
        for row in found.to_pylist()
    ]
    return sorted(checks, key=lambda row: (rank_severity(row["severity"]), -row["count"], row["check"]))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the audit says of a message, in the words of `dovetail audit why`."""

    kind: str
    words: str


def read_verdicts(root: Path, address: Address) -> list[Verdict]:
    """What became of a message for each recipient, failures first; for a broadcast, how many arrived."""
    here = ds.field("message") == pa.scalar(bytes(address), pa.binary())
    rows = Tables.open(root).read("deliveries", where=here).to_pylist()
    verdicts = [Verdict(_kind_of(row["outcome"]), describe_delivery(row)) for row in rows]
    verdicts.sort(key=lambda verdict: _KINDS.index(verdict.kind))
    if len(verdicts) <= MAX_VERDICTS:
        return verdicts
    arrived = sum(verdict.kind == "good" for verdict in verdicts)
    whole = Verdict(verdicts[0].kind, f"arrived for {arrived:,} of {len(verdicts):,} recipients")
    return [whole, *(verdict for verdict in verdicts[: MAX_VERDICTS - 1] if verdict.kind != "good")]


def _kind_of(outcome: str) -> str:
    return "good" if outcome in ARRIVED else "unsure" if outcome in PENDING else "bad"


def read_findings(
    root: Path, *, check: str = "", severity: str = "", offset: int = 0
) -> tuple[list[dict[str, Any]], int]:
    """One page of findings, the gravest first, and how many there are in all."""
    tables = Tables.open(root)
    where: ds.Expression | None = None
    for name, wanted in (("check", check), ("severity", severity)):
        if wanted:
            each = ds.field(name) == wanted
            where = each if where is None else where & each
    rows = tables.read("findings", where=where)
    ranks = pc.index_in(rows["severity"], value_set=pa.array(SEVERITIES))
    rows = rows.append_column("rank", pc.fill_null(ranks, len(SEVERITIES)))
    rows = rows.sort_by([("rank", "ascending"), ("check", "ascending"), ("at", "ascending")])
    return rows.slice(offset, PAGE_ROWS).to_pylist(), rows.num_rows
