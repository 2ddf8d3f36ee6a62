"""Posts alerts to a webhook: in its own thread, retried for an hour, bounded, never delaying the audit.

While a post fails, later alerts wait in order. An alert is also printed and recorded in `findings`; so one that could
not be posted for an hour, or is refused, is reported on stderr and dropped.
"""

from __future__ import annotations

import http.client
import queue
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from dovetail.audit.tables import Row
from dovetail.model.errors import ConfigError
from dovetail.runtime.http import is_url

MAX_WAITING = 1000
"""Maximum number of alerts waiting to be posted; further ones are reported as not posted."""

_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, *(60.0,) * 59)
"""An hour in all."""
_TIMEOUT_S = 10.0
_RETRIED = frozenset({408, 425, 429})


def check_webhook(url: str) -> str:
    """Return the URL if it can be posted to."""
    if not is_url(url, "http", "https"):
        raise ConfigError(f"webhook {url[:200]!r} is not an http or https URL")
    return url


class PostFailed(Exception):
    """A failed post; `retriable` if a retry may help."""

    def __init__(self, text: str, *, retriable: bool) -> None:
        super().__init__(text)
        self.retriable = retriable


def post(url: str, finding: Row, timeout_s: float = _TIMEOUT_S) -> None:
    """Post one finding as JSON."""
    request = urllib.request.Request(  # noqa: S310 - `check_webhook` allows only http and https
        url, data=msgspec.json.encode(finding), headers={"Content-Type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_s):  # noqa: S310
            return
    except urllib.error.HTTPError as error:
        error.close()
        retriable = error.code >= 500 or error.code in _RETRIED
        raise PostFailed(f"it answered {error.code}", retriable=retriable) from None
    except (http.client.InvalidURL, ValueError) as error:
        raise PostFailed(str(error), retriable=False) from None
    except (OSError, http.client.HTTPException) as error:
        raise PostFailed(str(error) or type(error).__name__, retriable=True) from None


@dataclass(slots=True)
class Webhook:
    """Posts findings one at a time; `report` gets a line for each that could not be posted."""

    url: str
    report: Callable[[str], None]
    pauses_s: tuple[float, ...] = _PAUSES_S
    _waiting: queue.Queue[Row | None] = field(default_factory=lambda: queue.Queue(MAX_WAITING))
    _closing: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._work, name="webhook", daemon=True)
        self._thread.start()

    def put(self, finding: Row) -> None:
        """Queue it for posting; returns immediately."""
        try:
            self._waiting.put_nowait(finding)
        except queue.Full:
            self.report(f"webhook: {MAX_WAITING} alerts are already waiting, {finding['check']} is not posted")

    def close(self, wait_s: float = _TIMEOUT_S) -> None:
        """Post what is queued, with one more attempt each, for at most this long."""
        self._closing.set()
        try:
            self._waiting.put(None, timeout=wait_s)
        except queue.Full:
            return
        self._thread.join(wait_s)

    def _work(self) -> None:
        while (finding := self._waiting.get()) is not None:
            problem = self._deliver(finding)
            if problem is not None:
                self.report(f"webhook: {finding['check']} is not posted: {problem}")

    def _deliver(self, finding: Row) -> str | None:
        """Retry until it arrives or cannot; returns the last error."""
        for pause_s in (*self.pauses_s, None):
            try:
                post(self.url, finding)
            except PostFailed as error:
                if pause_s is None or not error.retriable or self._closing.wait(pause_s):
                    return str(error)
            else:
                return None
        return None
