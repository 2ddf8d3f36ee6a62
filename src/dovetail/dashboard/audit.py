"""The latest audit: its findings, and what its tables say of servers and chains; read anew when a run replaced them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from dovetail.model.errors import DovetailError
from dovetail.report.tables import Tables

PAGE_ROWS = 100
_SEVERITIES = ("error", "warning", "note")


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
        found = (
            tables.read("findings", ["check", "severity"])
            .group_by(["check", "severity"])
            .aggregate([([], "count_all")])
        )
        checks = [
            {"check": row["check"], "severity": row["severity"], "count": row["count_all"]} for row in found.to_pylist()
        ]
        checks.sort(key=lambda row: (_rank(row["severity"]), -row["count"], row["check"]))
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
    ranks = pc.index_in(rows["severity"], value_set=pa.array(_SEVERITIES))
    rows = rows.append_column("rank", pc.fill_null(ranks, len(_SEVERITIES)))
    rows = rows.sort_by([("rank", "ascending"), ("check", "ascending"), ("at", "ascending")])
    return rows.slice(offset, PAGE_ROWS).to_pylist(), rows.num_rows


def _rank(severity: str) -> int:
    return _SEVERITIES.index(severity) if severity in _SEVERITIES else len(_SEVERITIES)
