"""The supervisor's metrics for sealing, audit and disks: how far each is behind, and what was found.

A thread reads journals, lake and tables every few seconds, and a scrape gets the last values. So neither the supervisor
nor a scrape waits for an unresponsive disk; a value that could not be read is left out, and `unread` names it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dovetail.journal.reader import JournalReader
from dovetail.keys import load_verifier_keys
from dovetail.lake.head import read_head, read_heads
from dovetail.lake.location import local_directory, open_store
from dovetail.model.errors import DovetailError, KeyFileError
from dovetail.receipt.witness_memory import newest_cosignatures
from dovetail.runtime.clock import now_us
from dovetail.runtime.journal_metrics import disk_free
from dovetail.site.servers import Site
from dovetail.tlog.keys import Verifier

READ_INTERVAL_S = 15.0
STALLED_S = 120.0
"""A reading that has not ended for longer is stuck."""

log = logging.getLogger("dovetail.metrics")


class SiteCollector(Collector):
    """Reads a site until stopped; call `start` once."""

    def __init__(self, site: Site, clock: Callable[[], float] = time.monotonic) -> None:
        self._site = site
        self._clock = clock
        self._stopped = threading.Event()
        self._families: list[Metric] = []
        self._found: tuple[int, list[tuple[str, str, int]], int] | None = None
        self._unread: dict[str, tuple[float, str]] = {}
        self._read_at_s = self._clock()

    def start(self) -> None:
        """Read now and every few seconds, in a thread that ends with the process."""
        threading.Thread(target=self._loop, name="site metrics", daemon=True).start()

    def stop(self) -> None:
        """End the thread after its current read."""
        self._stopped.set()

    def collect(self) -> Iterator[Metric]:
        """The values read last."""
        yield from self._families

    def unread(self) -> dict[str, tuple[float, str]]:
        """What could not be read for a while: for how many seconds, and why."""
        now = self._clock()
        found = {what: (now - since, why) for what, (since, why) in self._unread.items()}
        if now - self._read_at_s > STALLED_S:
            found["the site"] = now - self._read_at_s, "a disk does not answer, or the reader has failed"
        return found

    def read(self) -> None:
        """Read everything once."""
        config = self._site.config
        directories = {"journal": str(config.journal.directory)}
        if local_directory(config.lake.directory) is not None:
            directories["lake"] = config.lake.directory
        unread: dict[str, str] = {}
        readings: dict[str, Callable[[], list[Metric]]] = {
            "disks": lambda: [disk_free(directories)],
            "sealing": functools.partial(self._seal_lag, unread),
        }
        if config.journal.cosigned is not None:
            readings["witnesses"] = functools.partial(self._witness_age, config.journal.cosigned)
        if self._site.runs_audit:
            readings["the audit"] = self._audit
        families: list[Metric] = []
        for what, reading in readings.items():
            # files come and go during a read; the next one is soon
            try:
                families += reading()
            except (DovetailError, OSError) as error:
                unread[what] = _cause(error)
        now = self._clock()
        self._unread = {what: (self._unread.get(what, (now, ""))[0], why) for what, why in unread.items()}
        self._families = families
        self._read_at_s = now

    def _loop(self) -> None:
        while True:
            self.read()
            if self._stopped.wait(READ_INTERVAL_S):
                return

    def _seal_lag(self, unread: dict[str, str]) -> list[Metric]:
        family = GaugeMetricFamily(
            "dovetail_seal_lag_seconds", "Age of the oldest hop that is not in the lake; 0 if none.", labels=["server"]
        )
        for reader in self._readers():
            server = reader.identity.server
            # an unreadable journal does not affect the others
            try:
                family.add_metric([server], _unsealed_s(reader, self._site.config.lake.directory))
            except (DovetailError, OSError) as error:
                unread[f"sealing of {server}"] = _cause(error)
        return [family]

    def _witness_age(self, folder: Path) -> list[Metric]:
        family = GaugeMetricFamily(
            "dovetail_witness_age_seconds",
            "Time since a trusted witness last cosigned a checkpoint of the journal; +Inf if none did.",
            labels=["server"],
        )
        now = now_us()
        trusted: tuple[Verifier, ...] = ()
        try:
            trusted = load_verifier_keys(self._site.config.keys.directory)
        except KeyFileError as error:
            log.warning("no cosignature can be checked: %s", error)
        newest = newest_cosignatures(folder, trusted, now)
        for reader in self._readers():
            look = newest.get(reader.identity.server)
            age_s = math.inf if look is None else max(0.0, now / 1_000_000 - look.at_s)
            family.add_metric([reader.identity.server], age_s)
        return [family]

    def _readers(self) -> Iterator[JournalReader]:
        """The journals that can be opened, one at a time."""
        for path in self._site.journals():
            if path.exists():
                with contextlib.suppress(DovetailError, OSError), JournalReader.open(path) as reader:
                    yield reader

    def _audit(self) -> list[Metric]:
        """How far the tables are behind the lake, and their findings; the tables are read again after each run."""
        from dovetail.audit.tables import changed_ns, open_tables

        root = self._site.config.audit.directory
        try:
            changed = changed_ns(root)
        except FileNotFoundError:
            if not _newest_sealed_us(self._site.config.lake.directory):
                return []  # there is nothing to audit yet
            raise
        if self._found is None or self._found[0] != changed:
            tables = open_tables(root)
            counts = [(*names, count) for names, count in tables.count_by("findings", "check", "severity").items()]
            self._found = changed, counts, tables.run.as_of_us
        _, counts, as_of_us = self._found
        findings = GaugeMetricFamily(
            "dovetail_findings", "Findings in the tables of the audit.", labels=["check", "severity"]
        )
        for check, severity, count in counts:
            findings.add_metric([check, severity], count)
        lag_s = max(0, _newest_sealed_us(self._site.config.lake.directory) - as_of_us) / 1_000_000
        lag = GaugeMetricFamily(
            "dovetail_audit_lag_seconds",
            "Time between the newest hop in the tables and the newest in the lake.",
            value=lag_s,
        )
        made = GaugeMetricFamily(
            "dovetail_audit_timestamp_seconds", "When the tables were last replaced.", value=changed / 1e9
        )
        return [findings, lag, made]


def _cause(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _unsealed_s(reader: JournalReader, lake: str) -> float:
    oldest = next(reader.commits(read_head(open_store(lake), reader.identity.verifier).end), None)
    return 0.0 if oldest is None else max(0.0, time.time() - oldest.row.first_at_us / 1_000_000)


def _newest_sealed_us(lake: str) -> int:
    """The time of the newest hop in the lake, from the last manifest of each server."""
    heads = [head.manifest for head in read_heads(open_store(lake)) if head.manifest is not None]
    return max((manifest.files[-1].last_at_us for manifest in heads), default=0)
