"""Alerts of the following audit: findings that were not there before, printed and posted to a webhook if there is one.

Which findings are new is decided by comparing the table of findings with what was told before, which is kept beside the
tables: a restart tells nothing twice. Chains that are overdue are findings too, since the moment the audit speaks about
moves on with the newest hop of the lake; so no timer has to be kept per chain.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dovetail.errors import ConfigError
from dovetail.journal.lake import publish
from dovetail.pipeline.reading import Row, scan

TOLD = "_state/alerts.json"
MAX_TOLD = 100_000
_WEBHOOK_TIMEOUT_S = 10
_TELLING = ("integrity.", "gap.", "fork.", "chain.", "delivery.lost", "message.bad", "quarantine.unreadable")


@dataclass(slots=True)
class Alerts:
    """Tells each new finding once."""

    out: Path
    tell: Callable[[Row], None]

    def update(self) -> int:
        """Tell what is new since the last time; returns how many there were."""
        path = self.out / TOLD
        told: set[str] = set(msgspec.json.decode(path.read_bytes(), type=list[str])) if path.is_file() else set()
        present = {}
        for finding in scan(self.out, "findings"):
            if finding["severity"] != "note" and finding["check"].startswith(_TELLING):
                present[_key(finding)] = finding
        new = [finding for key, finding in sorted(present.items()) if key not in told]
        for finding in new:
            self.tell(finding)
        publish(path, msgspec.json.encode(sorted(present)[:MAX_TOLD]))
        return len(new)


def _key(finding: Row) -> str:
    return json.dumps([finding[name] for name in ("check", "server", "message", "seq", "detail")])


def check_webhook(url: str) -> str:
    """The URL itself if it is one that can be posted to."""
    if not url.startswith(("https://", "http://")):
        raise ConfigError(f"webhook {url[:200]!r} is not an http or https URL")
    return url


def post(url: str, finding: Row) -> str | None:
    """Post one finding as JSON; returns what went wrong, since a broken webhook must not stop the audit."""
    request = urllib.request.Request(  # noqa: S310 - `check_webhook` allows only http and https
        url, data=msgspec.json.encode(finding), headers={"Content-Type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=_WEBHOOK_TIMEOUT_S):  # noqa: S310
            return None
    except OSError as error:
        return str(error)
