"""Findings as readers see them: how many of each check, the worst first, and which are about failed deliveries."""

from __future__ import annotations

import pyarrow as pa

from dovetail.audit.check_guides import SEVERITIES, guide_to
from dovetail.model.outcome import FAILED, Outcome
from dovetail.report.arrays import count_by
from dovetail.report.numbers import CheckCount

NOT_ARRIVED = "not_arrived"
"""The filter for the findings about deliveries that did not arrive."""
FAILED_CHECKS = [f"delivery.{outcome}" for outcome in Outcome if outcome in FAILED]
"""The checks that this filter selects: one finding for each such delivery."""


def count_checks(findings: pa.Table) -> list[CheckCount]:
    """Findings by check, the worst first."""
    counts = [
        CheckCount(check=check, severity=severity, findings=count, **guide_to(check)._asdict())
        for check, severity, count in count_by(findings, ("check", "severity"))
    ]
    return sorted(counts, key=lambda item: (rank_severity(item.severity), item.check))


def rank_severity(severity: str) -> int:
    """0 is worst."""
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)
