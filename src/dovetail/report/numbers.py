"""The content of the report as plain records: the page draws them, the terminal prints a few, `--json` prints all.

Names of peers are unescaped here; the code that displays them escapes them. Times are microseconds.
"""

from __future__ import annotations

import msgspec

from dovetail.model.outcome import ARRIVED, FAILED, Outcome, count_arrived


class OutcomeCount(msgspec.Struct, frozen=True, kw_only=True):
    """Number of deliveries of one type with one outcome."""

    fabric: str
    type: str | None
    outcome: str
    deliveries: int


class ReasonCount(msgspec.Struct, frozen=True, kw_only=True):
    """Number of deliveries that failed for one reason."""

    fabric: str
    outcome: str
    reason: str | None
    sentence: str
    deliveries: int


class OutcomeSlot(msgspec.Struct, frozen=True, kw_only=True):
    """Outcomes of the deliveries that began in one time slot."""

    at_us: int
    fabric: str
    outcome: str
    deliveries: int


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """How long something took."""

    count: int
    p50_us: int
    p90_us: int
    p99_us: int
    max_us: int


class Leg(msgspec.Struct, frozen=True, kw_only=True):
    """How long one leg of the delivery took; `of` is the message type, or empty for all."""

    fabric: str
    leg: str
    of: str
    times: Quantiles


class LatencyBucket(msgspec.Struct, frozen=True, kw_only=True):
    """Deliveries that took at most this long, and longer than the previous bucket."""

    fabric: str
    up_to_ms: int
    deliveries: int


class SlowRecipient(msgspec.Struct, frozen=True, kw_only=True):
    """A recipient with its delivery times and success rate."""

    fabric: str
    recipient: str
    deliveries: int
    failed: int
    times: Quantiles


class ChainCount(msgspec.Struct, frozen=True, kw_only=True):
    """Number of chains of a kind in a state."""

    fabric: str
    kind: str
    state: str
    chains: int


class GapCount(msgspec.Struct, frozen=True, kw_only=True):
    """Number of dangling references; `live` is None if it is unknown whether the parent may still be live."""

    fabric: str
    scope: str
    live: bool | None
    gaps: int


class ForkEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that contradict each other, by their addresses."""

    fabric: str
    kind: str
    author: str | None
    subject: str
    evidence: list[str]
    at_us: int | None


class CoverageSlot(msgspec.Struct, frozen=True, kw_only=True):
    """How completely the messages that appeared in one time slot spread over the peers."""

    swarm: str
    at_us: int
    messages: int
    share: float
    worst: float
    half_us: int | None
    all_us: int | None


class PeerState(msgspec.Struct, frozen=True, kw_only=True):
    """What one peer holds."""

    swarm: str
    peer: str
    holds: int
    lacks: int
    first_us: int | None


class Break(msgspec.Struct, frozen=True, kw_only=True):
    """A fault in a server's hops."""

    check: str
    file: str | None
    seq: int | None
    detail: str | None


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a server's hops are complete, in order, unaltered and signed; and which of them a witness has seen."""

    fabric: str
    server: str
    verdict: str
    hops: int
    signed_hops: int
    signed_at_us: int | None
    proven_hops: int
    missing_hops: int
    backwards: int
    checkpoints: int
    proven_checkpoints: int
    key_source: str
    breaks: list[Break]
    witness: str | None = None
    witnessed_at_us: int | None = None
    witnessed_hops: int = 0


class TrafficSlot(msgspec.Struct, frozen=True, kw_only=True):
    """Hops of a fabric in one time slot."""

    at_us: int
    fabric: str
    hops: int
    bytes: int


class StageCount(msgspec.Struct, frozen=True, kw_only=True):
    """Number of hops of a server in a stage."""

    fabric: str
    server: str
    stage: str
    hops: int


class SkewState(msgspec.Struct, frozen=True, kw_only=True):
    """The difference between two servers' clocks; None if messages went one way only."""

    server: str
    other: str
    offset_us: int | None
    error_us: int | None


class CheckCount(msgspec.Struct, frozen=True, kw_only=True):
    """One check with its number of findings, meaning and advice."""

    check: str
    severity: str
    title: str
    meaning: str
    advice: str
    findings: int


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """The counts shown on every page: the report, the dashboard and the headline of both."""

    hops: int
    outcomes: list[OutcomeCount]
    servers: list[ServerState]
    checks: list[CheckCount]

    @property
    def deliveries(self) -> int:
        """All deliveries, whatever their outcome."""
        return sum(item.deliveries for item in self.outcomes)

    @property
    def arrived(self) -> int:
        """Deliveries that arrived."""
        return sum(item.deliveries for item in self.outcomes if item.outcome in ARRIVED)

    @property
    def pending(self) -> int:
        """Deliveries that have neither arrived nor failed as of the audit."""
        return self.deliveries - self.arrived - self.failed

    @property
    def failed(self) -> int:
        """Deliveries that ended without arriving."""
        return sum(item.deliveries for item in self.outcomes if item.outcome in FAILED)

    @property
    def proven(self) -> int:
        """Servers whose hops are all covered by signed roots."""
        return sum(server.verdict == "proven" for server in self.servers)

    def found(self, severity: str) -> int:
        """Findings of a severity."""
        return sum(item.findings for item in self.checks if item.severity == severity)

    def found_by(self, group: str) -> int:
        """Findings of the checks whose ids begin with `group`."""
        return sum(item.findings for item in self.checks if item.check.startswith(group))


class Numbers(Counts, frozen=True, kw_only=True):
    """Everything shown in the report."""

    lake: str
    as_of_us: int | None
    first_us: int | None
    last_us: int | None
    messages: dict[str, int]
    reasons: list[ReasonCount]
    slot_us: int
    outcomes_over_time: list[OutcomeSlot]
    latency: list[LatencyBucket]
    without_latency: dict[str, int]
    legs: list[Leg]
    slow: list[SlowRecipient]
    chains: list[ChainCount]
    gaps: list[GapCount]
    forks: list[ForkEvidence]
    fork_count: int
    coverage: list[CoverageSlot]
    peers: list[PeerState]
    traffic: list[TrafficSlot]
    stages: list[StageCount]
    skew: list[SkewState]

    @property
    def fabrics(self) -> list[str]:
        """The fabrics that the audit has seen."""
        return sorted(self.messages.keys() | {item.fabric for item in self.outcomes})

    @property
    def check_groups(self) -> list[str]:
        """The first parts of the checks that found something, in order."""
        return list(dict.fromkeys(item.check.partition(".")[0] for item in self.checks))

    def arrived_of(self, fabric: str) -> int:
        """Deliveries of a fabric that arrived."""
        return count_arrived(self.outcomes_of(fabric))

    def outcomes_of(self, fabric: str) -> dict[str, int]:
        """Deliveries of a fabric by outcome, in the order of `Outcome`."""
        counts = {outcome.value: 0 for outcome in Outcome}
        for item in self.outcomes:
            if item.fabric == fabric:
                counts[item.outcome] = counts.get(item.outcome, 0) + item.deliveries
        return {outcome: count for outcome, count in counts.items() if count}
