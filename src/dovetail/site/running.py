"""The health of a running site: every /healthz, and processes that do not answer."""

from __future__ import annotations

import http.client
import math
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from prometheus_client.metrics_core import Metric

from dovetail.runtime.server_health import OK, add_remarks, is_healthy
from dovetail.site.doctor.finding import Finding, fail, ok, warn
from dovetail.site.servers import Site

ASK_TIMEOUT_S = 3.0
POLL_S = 5.0
MAX_ANSWER_BYTES = 4_096
SPARE_S = 60.0
WITNESS_OLD_S = 2 * 86_400.0
"""A witness that has cosigned nothing for longer is unreachable, or is not being asked."""
BEHIND = 10
"""Sealing or audit is behind if it lags by more than this many of its intervals, and a minute."""


def ask_health(url: str) -> str:
    """The answer at a /healthz; a text other than `ok` if there is none."""
    try:
        with urllib.request.urlopen(url, timeout=ASK_TIMEOUT_S) as answer:  # noqa: S310 - always http:
            text: str = answer.read(MAX_ANSWER_BYTES).decode(errors="replace").strip()
            return text if is_healthy(text) else f"answers {text[:80]!r}, which is not a health status of Dovetail"
    except urllib.error.HTTPError as error:
        with error:
            return error.read(MAX_ANSWER_BYTES).decode(errors="replace").strip() or f"answers {error.code}"
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        return f"does not answer: {str(getattr(reason, 'strerror', None) or reason).lower()}"


def check_running(site: Site) -> Iterator[Finding]:
    """One finding for the supervisor, the dashboard and each server with an endpoint."""
    asked = site.health_urls()
    if site.config.supervisor.metrics is not None:
        asked.insert(0, ("up", f"http://{site.config.supervisor.metrics}/healthz"))
    else:
        what = "sealing and the audit are not asked: `up` has no metrics"
        yield warn("up", what, "give supervisor.metrics")
    names = {name for name, _ in asked}
    for table in site.servers():
        if table.label not in names:
            yield warn(table.label, "not asked: it has no metrics", "give it `metrics`, or `metrics_port`")
    if not asked:
        yield fail(
            "running", "no server has a metrics endpoint", "set supervisor.metrics, and `metrics` of each server"
        )
    for name, url in asked:
        health = ask_health(url)
        if health == OK:
            yield ok(name, OK)
        elif is_healthy(health):
            yield warn(name, health.removeprefix(f"{OK}, but "), "see the runbook in how-to/runbook.md")
        else:
            yield fail(name, health, "see the runbook in how-to/runbook.md")


class SiteHealth:
    """The health of a whole site, polled by a thread every few seconds, so that /healthz of `up` never waits."""

    def __init__(
        self,
        site: Site,
        own: Callable[[], str],
        pids: Callable[[], Mapping[str, int]],
        lags: Callable[[], list[Metric]],
        unread: Callable[[], Mapping[str, tuple[float, str]]],
        poll_s: float = POLL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._site = site
        self._own = own
        self._pids = pids
        self._lags = lags
        self._unread = unread
        self._poll_s = poll_s
        self._stopped = threading.Event()
        self._troubles: list[str] = []
        self._warnings: list[str] = []
        self._asked_at_s = self._clock()

    def start(self) -> None:
        """Poll now and every few seconds, in a thread that ends with the process."""
        threading.Thread(target=self._loop, name="site health", daemon=True).start()

    def stop(self) -> None:
        """End the thread after its current poll."""
        self._stopped.set()

    def health(self) -> str:
        """The answer of /healthz of `up`: the processes as they are now, and the results of the last poll."""
        own = self._own()
        troubles = ([] if own == OK else [own]) + self._stopped_processes() + self._troubles
        silence_s = self._clock() - self._asked_at_s
        if silence_s > SPARE_S + self._poll_s + ASK_TIMEOUT_S * len(self._site.health_urls()):
            troubles.append(f"no server has been asked for {silence_s:.0f} s")
        if troubles:
            return "; ".join(troubles)
        return add_remarks(OK, self._warnings)

    def ask(self) -> None:
        """Poll every server and the dashboard once."""
        troubles, warnings = [], []
        running = self._pids()
        for name, url in self._site.health_urls():
            if name not in running:
                continue  # the supervisor reports this itself
            health = ask_health(url)
            if not is_healthy(health):
                troubles.append(f"{name}: {health}")
            elif health != OK:
                warnings.append(f"{name}: {health.removeprefix(f'{OK}, but ')}")
        self._troubles = troubles + self._behind() + self._unknown()
        self._warnings = warnings + self._unwitnessed()
        self._asked_at_s = self._clock()

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

    def _unknown(self) -> list[str]:
        """What may be behind, too: it could not be read for longer than files come and go."""
        config = self._site.config
        bounds_s = {"the audit": config.audit.interval_s * BEHIND + SPARE_S}
        return [
            f"{what} could not be read for {for_s:.0f} s: {why}"
            for what, (for_s, why) in self._unread().items()
            if for_s > bounds_s.get(what, SPARE_S)
        ]

    def _unwitnessed(self) -> list[str]:
        """The journals that no trusted witness has cosigned for a long time."""
        families = (family for family in self._lags() if family.name == "dovetail_witness_age_seconds")
        old = [each for family in families for each in family.samples if each.value > WITNESS_OLD_S]
        return [
            f"no witness has cosigned the journal of {each.labels['server']}"
            + ("" if each.value == math.inf else f" for {each.value / 3600:.0f} h")
            for each in old
        ]

    def _stopped_processes(self) -> list[str]:
        """Processes that were stopped: they exist but do nothing."""
        return [f"{name}: stopped by a signal" for name, pid in self._pids().items() if is_stopped(pid)]

    def _loop(self) -> None:
        while True:
            self.ask()
            if self._stopped.wait(self._poll_s):
                return


def is_stopped(pid: int) -> bool:
    """True if a process is stopped (SIGSTOP); False if unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False
