"""The supervisor's metrics for sealing, audit and disks: how far each is behind, and what was found.

A thread reads journals, lake and tables every few seconds, and a scrape gets the last values. So neither the supervisor
nor a scrape waits for an unresponsive disk; a value that could not be read is left out.
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

log = logging.getLogger("dovetail.metrics")


class SiteCollector(Collector):
    """Reads a site until stopped; call `start` once."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._stopped = threading.Event()
        self._families: list[Metric] = []
        self._found: tuple[int, list[tuple[str, str, int]], int] | None = None

    def start(self) -> None:
        """Read now and every few seconds, in a thread that ends with the process."""
        threading.Thread(target=self._loop, name="site metrics", daemon=True).start()

    def stop(self) -> None:
        """End the thread after its current read."""
        self._stopped.set()

    def collect(self) -> Iterator[Metric]:
        """The values read last."""
        yield from self._families

    def read(self) -> None:
        """Read everything once."""
        config = self._site.config
        directories = {"journal": str(config.journal.directory)}
        if local_directory(config.lake.directory) is not None:
            directories["lake"] = config.lake.directory
        readings: list[Callable[[], list[Metric]]] = [lambda: [disk_free(directories)], self._seal_lag]
        if config.journal.cosigned is not None:
            readings.append(functools.partial(self._witness_age, config.journal.cosigned))
        if self._site.runs_audit:
            readings.append(self._audit)
        families: list[Metric] = []
        for reading in readings:
            # files come and go during a read; the next one is soon
            try:
                families += reading()
            except (DovetailError, OSError) as error:
                log.debug("not read: %s", error)
        self._families = families

    def _loop(self) -> None:
        while True:
            self.read()
            if self._stopped.wait(READ_INTERVAL_S):
                return

    def _seal_lag(self) -> list[Metric]:
        family = GaugeMetricFamily(
            "dovetail_seal_lag_seconds", "Age of the oldest hop that is not in the lake; 0 if none.", labels=["server"]
        )
        for reader in self._readers():
            # an unreadable journal does not affect the others
            with contextlib.suppress(DovetailError, OSError):
                family.add_metric([reader.identity.server], _unsealed_s(reader, self._site.config.lake.directory))
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
        changed = changed_ns(root)
        if self._found is None or self._found[0] != changed:
            try:
                tables = open_tables(root)
                counts = [(*names, count) for names, count in tables.count_by("findings", "check", "severity").items()]
            except DovetailError:
                return []  # files of an older run may be removed while they are read
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


def _unsealed_s(reader: JournalReader, lake: str) -> float:
    oldest = next(reader.commits(read_head(open_store(lake), reader.identity.verifier).end), None)
    return 0.0 if oldest is None else max(0.0, time.time() - oldest.row.first_at_us / 1_000_000)


def _newest_sealed_us(lake: str) -> int:
    """The time of the newest hop in the lake, from the last manifest of each server."""
    heads = [head.manifest for head in read_heads(open_store(lake)) if head.manifest is not None]
    return max((manifest.files[-1].last_at_us for manifest in heads), default=0)
