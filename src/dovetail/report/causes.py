"""Groups findings by cause: one row for a hundred messages that failed at the same place for the same recipient.

Several checks may report one message: it was not delivered, and therefore it was answered with a failure. The first of
them, the most severe, is the cause of the others. Findings with the same check, server and subject are one cause; the
subject is the detail without what differs between messages, that is addresses and the reason.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from dovetail.model.hop import Reason

_ADDRESS = re.compile(r"(?:\w+:/)?\b(?:[0-9a-f]{8,64}|Qm[1-9A-HJ-NP-Za-km-z]{20,})\b")
_REASONS = frozenset(str(reason) for reason in Reason)


class Finding(NamedTuple):
    """The fields that determine the cause of a finding."""

    check: str
    server: str
    message: bytes | None
    detail: str


def group_by_cause(findings: Sequence[Finding]) -> list[int]:
    """The number of the cause of each finding, from 0 in order of first occurrence.

    The findings are in display order, the most severe first.
    """
    first_of: dict[bytes, Finding] = {}
    for finding in findings:
        if finding.message is None:
            continue
        known = first_of.setdefault(finding.message, finding)
        if finding.check.startswith("delivery.") and not known.check.startswith("delivery."):
            first_of[finding.message] = finding
    causes: dict[tuple[str, str, str], int] = {}
    numbers = []
    for finding in findings:
        cause = finding if finding.message is None else first_of[finding.message]
        key = cause.check, cause.server, subject_of(cause.detail)
        numbers.append(causes.setdefault(key, len(causes)))
    return numbers


def subject_of(detail: str) -> str:
    """The part of a finding's detail shared by all findings with the same cause."""
    words = [word for word in _ADDRESS.sub("…", detail).split() if word.strip(":,;()") not in _REASONS]
    return " ".join(words)
