"""The summary of a run: how many messages, how many arrived, what is wrong, and how certain that is."""

from __future__ import annotations

from bisect import insort
from collections import Counter

import msgspec

from dovetail.audit.check_guides import SEVERITIES, guide_to
from dovetail.audit.tables import Row, Tables
from dovetail.model.outcome import ARRIVED, count_arrived
from dovetail.model.times import to_datetime

MAX_EXAMPLES = 3


class FoundCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One check with its number of findings."""

    check: str
    severity: str
    sentence: str
    findings: int
    examples: list[str]


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
    """How well the hops of one server are proven."""

    server: str
    verdict: str
    hops: int
    proven_hops: int
    signed_hops: int
    key_source: str


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run."""

    lake: str
    as_of: str
    hops: int
    messages: dict[str, int]
    deliveries: dict[str, dict[str, int]]
    chains: dict[str, int]
    servers: list[ServerState]
    found: list[FoundCheck]

    @property
    def errors(self) -> int:
        """Number of findings that are errors."""
        return sum(item.findings for item in self.found if item.severity == "error")

    def has_findings(self, severity: str) -> bool:
        """True if there are findings of this severity or worse."""
        return any(SEVERITIES.index(item.severity) <= SEVERITIES.index(severity) for item in self.found)

    def text(self) -> str:
        """The summary for a terminal."""
        total = sum(self.messages.values())
        by_fabric = ", ".join(f"{count:,} {fabric}" for fabric, count in sorted(self.messages.items()))
        lines = [f"{total:,} messages ({by_fabric or 'none'}), {self.hops:,} hops, as of {self.as_of}"]
        for fabric, outcomes in sorted(self.deliveries.items()):
            all_of = sum(outcomes.values())
            arrived = count_arrived(outcomes)
            rest = ", ".join(f"{count:,} {name}" for name, count in sorted(outcomes.items()) if name not in ARRIVED)
            lines.append(f"  {fabric:<6} {arrived:,} of {all_of:,} deliveries arrived{'; ' + rest if rest else ''}")
        if self.chains:
            lines.append("  chains " + ", ".join(f"{count:,} {state}" for state, count in sorted(self.chains.items())))
        lines.append(self._certainty())
        for item in self.found:
            lines.append(f"  {item.severity:<8} {item.check:<28} {item.findings:>7,}  {item.sentence}")
            lines += [f"           {example}" for example in item.examples]
        if not self.found:
            lines.append("no findings")
        return "\n".join(lines) + "\n"

    def _certainty(self) -> str:
        proven = [state for state in self.servers if state.verdict == "proven"]
        pinned = sum(state.key_source == "pinned" for state in self.servers)
        if pinned == 0:
            keys = "keys are those stated in the lake (pin them with --trust)"
        elif pinned == len(self.servers):
            keys = "keys pinned"
        else:
            keys = f"keys of {pinned} pinned (--trust has no key of the others)"
        broken = [state.server for state in self.servers if state.verdict != "proven"]
        text = f"{len(proven)} of {len(self.servers)} servers proven to their signed checkpoints, {keys}"
        return text + (f"; not proven: {', '.join(broken)}" if broken else "")


def summarize(tables: Tables) -> Summary:
    """Summarize the tables, batch by batch: only a few rows are held at once."""
    deliveries: dict[str, dict[str, int]] = {}
    for (fabric, outcome), count in tables.count_by("deliveries", "fabric", "outcome").items():
        deliveries.setdefault(fabric, {})[outcome] = count
    servers = [
        ServerState(**{name: row[name] for name in ServerState.__struct_fields__})
        for row in sorted(tables.scan("integrity"), key=lambda row: str(row["server"]))
        if row["server"]
    ]
    return Summary(
        lake=tables.run.lake,
        as_of=to_datetime(tables.run.as_of_us).isoformat().replace("+00:00", "Z"),
        hops=tables.count("hops"),
        messages={fabric: count for (fabric,), count in tables.count_by("messages", "fabric").items()},
        deliveries=deliveries,
        chains={state: count for (state,), count in tables.count_by("chains", "state").items()},
        servers=servers,
        found=_found(tables),
    )


def _found(tables: Tables) -> list[FoundCheck]:
    counts: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], list[str]] = {}
    for row in tables.scan("findings"):
        check = row["check"], row["severity"]
        counts[check] += 1
        least = examples.setdefault(check, [])
        example = _example(row)
        if example not in least:
            insort(least, example)
            del least[MAX_EXAMPLES:]
    found = [
        FoundCheck(
            check=check,
            severity=severity,
            sentence=guide_to(check).meaning,
            findings=count,
            examples=examples[check, severity],
        )
        for (check, severity), count in counts.items()
    ]
    return sorted(found, key=lambda item: (SEVERITIES.index(item.severity), item.check))


def _example(row: Row) -> str:
    hop = None if row["seq"] is None else f"hop {row['seq']}"
    message = None if row["message"] is None else row["message"][:16]
    return " ".join(part for part in (row["server"], hop, message, row["detail"]) if part is not None)
