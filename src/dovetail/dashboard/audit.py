"""The latest audit: its findings, and its tables of servers and chains; read again after each run."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from dovetail.audit.check_guides import guide_to
from dovetail.audit.message_trace import describe_delivery
from dovetail.audit.tables import Tables
from dovetail.journal.hop_source import HopSource
from dovetail.lake.location import Location
from dovetail.model.address import Address
from dovetail.model.errors import DovetailError
from dovetail.model.hop import Hop
from dovetail.model.outcome import ARRIVED, FAILED
from dovetail.report.arrays import micros
from dovetail.report.causes import Finding, group_by_cause
from dovetail.report.check_counts import FAILED_CHECKS, NOT_ARRIVED, rank_severity
from dovetail.report.findings import read_worst, stopped_at
from dovetail.report.numbers import CheckCount, Counts, OutcomeCount, ServerState
from dovetail.report.summary import list_servers

PAGE_ROWS = 100
MAX_OFFSET = 100_000 - PAGE_ROWS
"""How far the list of findings can be paged; to see later ones, narrow the list by severity or check."""
MAX_VERDICTS = 5
SECONDS_TO_LOCATE = 0.3
MAX_GROUPED = 10_000
"""How many findings are grouped by cause; beyond them there is the list of each finding."""
_KINDS = ("bad", "unsure", "good")


class Seen(NamedTuple):
    """The findings of one check: the servers they name, their first and last time, the newest message concerned."""

    servers: frozenset[str] = frozenset()

    first_us: int | None = None
    last_us: int | None = None
    message: str | None = None


_NOTHING = Counts(hops=0, outcomes=[], servers=[], checks=[])


@dataclass(frozen=True, slots=True)
class Overview:
    """The results of one audit run, in numbers; `problem` says why there are none."""

    problem: str = ""
    tables: Tables | None = None
    counts: Counts = _NOTHING
    seen: dict[str, Seen] = field(default_factory=dict)
    chains: dict[str, int] = field(default_factory=dict)

    @property
    def checks(self) -> Sequence[CheckCount]:
        """The checks that found something, the most severe first."""
        return self.counts.checks

    @property
    def servers(self) -> Sequence[ServerState]:
        """All servers, unproven ones first."""
        return self.counts.servers


def survey(root: Location) -> Overview:
    """The numbers of the newest run in `root`."""
    try:
        tables = Tables.open(root)
        integrity = tables.read("integrity")
        states = tables.count_by("chains", "state").most_common()
        return Overview(
            tables=tables,
            counts=Counts(
                hops=tables.count("hops"),
                outcomes=[
                    OutcomeCount(fabric=fabric, type=None, outcome=outcome, deliveries=count)
                    for (fabric, outcome), count in sorted(tables.count_by("deliveries", "fabric", "outcome").items())
                ],
                servers=list_servers(integrity.filter(pc.not_equal(integrity["server"], "")), {}),
                checks=_count_checks(tables),
            ),
            seen=_see_checks(tables),
            chains={state: count for (state,), count in states},
        )
    except (DovetailError, OSError, pa.ArrowException, KeyError) as error:
        # files of an older run may be removed while they are read; the next read finds the newer one
        return Overview(problem=str(error))


def _count_checks(tables: Tables) -> list[CheckCount]:
    counts = [
        CheckCount(check=check, severity=severity, findings=count, **guide_to(check)._asdict())
        for (check, severity), count in tables.count_by("findings", "check", "severity").items()
    ]
    return sorted(counts, key=lambda row: (rank_severity(row.severity), -row.findings, row.check))


def _see_checks(tables: Tables) -> dict[str, Seen]:
    """Read batch by batch, because there may be very many findings."""
    seen: dict[str, Seen] = {}
    newest: dict[str, int] = {}
    columns = ["check", "at", "message", "server"]
    for batch in tables.batches("findings", columns) if "findings" in tables.names else ():
        rows = pa.Table.from_batches([batch])
        rows = rows.set_column(1, "at", micros(rows["at"]))
        per_check = rows.group_by("check").aggregate([("at", "min"), ("at", "max"), ("server", "distinct")])
        for row in per_check.to_pylist():
            known = seen.get(row["check"], Seen())
            firsts = [at for at in (known.first_us, row["at_min"]) if at is not None]
            lasts = [at for at in (known.last_us, row["at_max"]) if at is not None]
            servers = known.servers.union(filter(None, row["server_distinct"]))
            seen[row["check"]] = Seen(servers, min(firsts, default=None), max(lasts, default=None), known.message)
        named = rows.filter(pc.field("message").is_valid() & pc.field("at").is_valid())
        for row in named.group_by("check").aggregate([("at", "max")]).to_pylist():
            check, at = row["check"], row["at_max"]
            if check not in newest or at > newest[check]:
                newest[check] = at
                is_newest = (pc.field("check") == check) & (pc.field("at") == at)
                seen[check] = seen[check]._replace(message=named.filter(is_newest)["message"][0].as_py().hex())
    return seen


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the audit says about a message, in the words of `dovetail audit why`."""

    kind: str
    words: str


def read_verdicts(root: Location, address: Address) -> list[Verdict]:
    """The outcome of a message for each recipient, failures first; for a broadcast, how many arrived."""
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
    return "good" if outcome in ARRIVED else "bad" if outcome in FAILED else "unsure"


def read_findings_about(root: Location, address: Address) -> list[Cause]:
    """What the audit found about a message, the most severe first, by check.

    A fork is a finding of one of its messages; its detail lists the beginnings of all their addresses.
    """
    here = ds.field("message") == pa.scalar(bytes(address), pa.binary())
    named = pc.match_substring_regex(ds.field("detail"), f"(^|[:,] ){address.hex()[:16]}(,|$)")
    rows, _ = read_worst(Tables.open(root), MAX_GROUPED, here | (pc.starts_with(ds.field("check"), "fork.") & named))
    checks: dict[str, Cause] = {}
    for row in rows.drop_columns("at").to_pylist():
        cause = checks.setdefault(row["check"], Cause(row["severity"], row))
        cause.checks[row["check"]] += 1
    return list(checks.values())


@dataclass(slots=True)
class Cause:
    """Findings with one cause: `row` is the one to show, `severity` the worst of them."""

    severity: str
    row: dict[str, Any]
    checks: Counter[str] = field(default_factory=Counter)
    details: Counter[str] = field(default_factory=Counter)
    messages: dict[bytes, None] = field(default_factory=dict)
    times: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which findings to list: of one check, of one severity, each alone or by cause, and from where on."""

    check: str = ""
    severity: str = ""
    each: bool = False
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of findings: `rows` of the list in all, made of the worst `findings` of `total`."""

    causes: Sequence[Cause] = ()
    rows: int = 0
    findings: int = 0
    total: int = 0


def read_listing(tables: Tables, choice: Choice) -> Listing:
    """A page of the chosen findings, the most severe first."""
    if choice.each:
        found, total = read_findings(tables, check=choice.check, severity=choice.severity, offset=choice.offset)
        return Listing([cause for row in found for cause in gather_causes([row])], total, total, total)
    found, total = _read(tables, choice.check, choice.severity, MAX_GROUPED)
    causes = gather_causes(found)
    return Listing(causes[choice.offset : choice.offset + PAGE_ROWS], len(causes), len(found), total)


def locate(causes: Sequence[Cause], sources: Sequence[HopSource]) -> None:
    """Give findings that name no server the one where their message stopped, as on the report."""
    deadline = time.monotonic() + SECONDS_TO_LOCATE
    for cause in causes:
        row = cause.row
        if row["server"] or not row["message"] or time.monotonic() > deadline:
            continue
        hops: list[Hop] = []
        for source in sources:
            if source.fabric == row["fabric"]:
                with contextlib.suppress(DovetailError, OSError):  # reported on the live page
                    hops += (found.hop for found in source.hops_of(Address(row["message"])))
        row["server"] = stopped_at(sorted(hops, key=lambda hop: (hop.at_us, hop.server, hop.seq)))


def gather_causes(rows: Sequence[dict[str, Any]]) -> list[Cause]:
    """Findings, the most severe first, grouped as on the report."""
    told = [Finding(row["check"], row["server"] or "", row["message"], row["detail"] or "") for row in rows]
    causes: dict[int, Cause] = {}
    for number, row in zip(group_by_cause(told), rows, strict=True):
        cause = causes.setdefault(number, Cause(row["severity"], row))
        if row["check"].startswith("delivery.") and not cause.row["check"].startswith("delivery."):
            cause.row = row
            cause.details.clear()
        if row["check"] == cause.row["check"]:
            cause.details[row["detail"] or ""] += 1
        cause.checks[row["check"]] += 1
        if row["message"]:
            cause.messages[row["message"]] = None
        if row["at"] is not None:
            cause.times.append(row["at"])
    return list(causes.values())


def read_findings(
    tables: Tables, *, check: str = "", severity: str = "", offset: int = 0
) -> tuple[list[dict[str, Any]], int]:
    """One page of findings, the most severe first, and the total number."""
    rows, total = _read(tables, check, severity, offset + PAGE_ROWS)
    return rows[offset:], total


def _read(tables: Tables, check: str, severity: str, limit: int) -> tuple[list[dict[str, Any]], int]:
    """The worst findings and their number.

    A check that ends with a full stop is a prefix and stands for all checks that begin with it; `NOT_ARRIVED` stands
    for the checks that count deliveries that did not arrive. Times are microseconds, under `at`.
    """
    where: ds.Expression | None = None
    if check == NOT_ARRIVED:
        where = ds.field("check").isin(FAILED_CHECKS)
    elif check:
        where = pc.starts_with(ds.field("check"), check) if check.endswith(".") else ds.field("check") == check
    if severity:
        is_severe = ds.field("severity") == severity
        where = is_severe if where is None else where & is_severe
    rows, total = read_worst(tables, limit, where)
    rows = rows.set_column(rows.schema.get_field_index("at"), "at", micros(rows["at"]))
    return rows.to_pylist(), total
