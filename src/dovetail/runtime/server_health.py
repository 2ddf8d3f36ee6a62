"""What `/healthz` of a server says besides its driver: certificates that are over, or soon will be.

A text that begins with `ok` is answered with 200: nothing has to be restarted. `ok, but ...` names what will not last.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from dovetail.model.times import time_text

OK = "ok"
WARN_CERTIFICATE_S = 14 * 86_400
"""A certificate that ends sooner is named."""


def is_well(health: str) -> bool:
    """True where a server can do its work, though perhaps not for long."""
    return health == OK or health.startswith(f"{OK}, but ")


def judge_certificates(health: str, expiries: Mapping[str, float | None], now_s: float | None = None) -> str:
    """The health of a server whose driver is as said, with the certificates that end then."""
    if health != OK:
        return health
    now = time.time() if now_s is None else now_s
    ends = sorted((end, name) for name, end in expiries.items() if end is not None)
    over = [f"{name} is out of date since {_when(end)}" for end, name in ends if end <= now]
    if over:
        return "; ".join(over)
    soon = [f"{name} ends at {_when(end)}" for end, name in ends if end <= now + WARN_CERTIFICATE_S]
    return f"{OK}, but {'; '.join(soon)}" if soon else OK


def _when(at_s: float) -> str:
    return time_text(int(at_s) * 1_000_000)
