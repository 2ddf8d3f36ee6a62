"""What the servers of a running site say about themselves: every /healthz, and processes that do not answer."""

from __future__ import annotations

import http.client
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from prometheus_client.metrics_core import Metric

from dovetail.runtime.server_health import OK, is_well
from dovetail.site.doctor.finding import Finding, fail, ok, warn
from dovetail.site.servers import Site

ASK_TIMEOUT_S = 3.0
POLL_S = 5.0
MAX_ANSWER_BYTES = 4_096
SPARE_S = 60.0
BEHIND = 10
"""Sealing or audit is behind when it lags by more than so many of its intervals, and a minute."""


def ask_health(url: str) -> str:
    """What a server answers at the /healthz beside its /metrics; a text that is not `ok` where it does not answer."""
    try:
        with urllib.request.urlopen(_healthz(url), timeout=ASK_TIMEOUT_S) as answer:  # noqa: S310 - always http:
            text: str = answer.read(MAX_ANSWER_BYTES).decode(errors="replace").strip()
            return text if is_well(text) else f"answers {text[:80]!r}, which is no health of Dovetail"
    except urllib.error.HTTPError as error:
        with error:
            return error.read(MAX_ANSWER_BYTES).decode(errors="replace").strip() or f"answers {error.code}"
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        return f"does not answer: {str(getattr(reason, 'strerror', None) or reason).lower()}"


def check_running(site: Site) -> Iterator[Finding]:
    """One finding for the supervisor and each server that can be asked."""
    asked = site.metrics_endpoints()
    if site.config.supervisor.metrics is not None:
        asked.insert(0, ("up", f"http://{site.config.supervisor.metrics}/metrics"))
    if not asked:
        yield fail("running", "no server has metrics to ask", "give supervisor.metrics, and `metrics` to each server")
    for name, url in asked:
        health = ask_health(url)
        if health == OK:
            yield ok(name, OK)
        elif is_well(health):
            yield warn(name, health.removeprefix(f"{OK}, but "), "see the runbook in how-to/runbook.md")
        else:
            yield fail(name, health, "see the runbook in how-to/runbook.md")


class SiteHealth:
    """The health of a whole site, asked by a thread every few seconds, so that /healthz of `up` waits for nobody."""

    def __init__(
        self,
        site: Site,
        own: Callable[[], str],
        pids: Callable[[], Mapping[str, int]],
        lags: Callable[[], list[Metric]],
        poll_s: float = POLL_S,
    ) -> None:
        self._site = site
        self._own = own
        self._pids = pids
        self._lags = lags
        self._poll_s = poll_s
        self._stopped = threading.Event()
        self._troubles: list[str] = []
        self._warnings: list[str] = []

    def start(self) -> None:
        """Ask now and every few seconds, in a thread that ends with the process."""
        threading.Thread(target=self._loop, name="site health", daemon=True).start()

    def stop(self) -> None:
        """End the thread after what it is doing."""
        self._stopped.set()

    def health(self) -> str:
        """What /healthz of `up` says: processes as they are now, and what was heard last."""
        own = self._own()
        troubles = ([] if own == OK else [own]) + self._stopped_processes() + self._troubles
        if troubles:
            return "; ".join(troubles)
        return f"{OK}, but {'; '.join(self._warnings)}" if self._warnings else OK

    def ask(self) -> None:
        """Ask every server once."""
        troubles, warnings = [], []
        running = self._pids()
        for name, url in self._site.metrics_endpoints():
            if name not in running:
                continue  # the supervisor says so itself
            health = ask_health(url)
            if not is_well(health):
                troubles.append(f"{name}: {health}")
            elif health != OK:
                warnings.append(f"{name}: {health.removeprefix(f'{OK}, but ')}")
        self._troubles, self._warnings = troubles + self._behind(), warnings

    def _behind(self) -> list[str]:
        config = self._site.config
        bounds = {
            "dovetail_seal_lag_seconds": ("sealing", config.lake.seal_interval_s * BEHIND + SPARE_S),
            "dovetail_audit_lag_seconds": ("the audit", config.audit.interval_s * BEHIND + SPARE_S),
        }
        found = []
        for family in self._lags():
            what, bound_s = bounds.get(family.name, ("", 0.0))
            for sample in family.samples if what else ():
                if sample.value > bound_s:
                    server = sample.labels.get("server")
                    found.append(f"{what}{f' of {server}' if server else ''} is {sample.value:.0f} s behind")
        return found

    def _stopped_processes(self) -> list[str]:
        """Processes that somebody stopped: they are there, and do nothing."""
        return [f"{name}: stopped by a signal" for name, pid in self._pids().items() if is_stopped(pid)]

    def _loop(self) -> None:
        while True:
            self.ask()
            if self._stopped.wait(self._poll_s):
                return


def is_stopped(pid: int) -> bool:
    """True if a process is stopped (SIGSTOP); False where that is not told."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False


def _healthz(url: str) -> str:
    return url.removesuffix("/metrics") + "/healthz"
