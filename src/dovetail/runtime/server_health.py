"""What `/healthz` of a server adds to its driver's health: expired certificates, and what is late or unreachable.

A text that starts with `ok` gives status 200: no restart needed. `ok, but ...` names what will fail soon.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from dovetail.model.times import time_text

OK = "ok"
WARN_CERTIFICATE_S = 14 * 86_400
"""A certificate that expires sooner is named."""


def is_healthy(health: str) -> bool:
    """True if a server works, though perhaps not for long."""
    return health == OK or health.startswith(f"{OK}, but ")


def add_remarks(health: str, remarks: Sequence[str]) -> str:
    """The health of a working server, with remarks on what will fail soon."""
    if not remarks or not is_healthy(health):
        return health
    return f"{health}{', but' if health == OK else ';'} {'; '.join(remarks)}"


def judge_certificates(health: str, expiries: Mapping[str, float | None], now_s: float | None = None) -> str:
    """The health of a server, given its driver's health and the expiry of its certificates."""
    if health != OK:
        return health
    now = time.time() if now_s is None else now_s
    ends = sorted((end, name) for name, end in expiries.items() if end is not None)
    over = [f"{name} expired at {_when(end)}" for end, name in ends if end <= now]
    if over:
        return "; ".join(over)
    soon = [f"{name} expires at {_when(end)}" for end, name in ends if end <= now + WARN_CERTIFICATE_S]
    return add_remarks(OK, soon)


def _when(at_s: float) -> str:
    return time_text(int(at_s) * 1_000_000)
