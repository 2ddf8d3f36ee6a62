"""The numbers of a server's journal for Prometheus, the same for all fabrics."""

from __future__ import annotations

import os
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dovetail.journal.journal import Journal
from dovetail.model.durations import Durations


class JournalCollector(Collector):
    """Collects what a journal counts, and the room on its disk."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def collect(self) -> Iterator[Metric]:
        """One family after the other."""
        journal = self._journal
        for name, help_text, value in (
            ("queue_bytes", "Bytes that wait to be committed.", journal.queue_bytes),
            ("bytes", "Size of the journal's file.", journal.path.stat().st_size if journal.path.exists() else 0),
        ):
            yield GaugeMetricFamily(f"dovetail_journal_{name}", help_text, value=value)
        yield CounterMetricFamily("dovetail_journal_hops", "Hops in the journal.", value=journal.size)
        yield histogram("dovetail_journal_commit_seconds", "One group commit, fsync included.", journal.commit_times)
        yield GaugeMetricFamily(
            "dovetail_checkpoint_timestamp_seconds",
            "When a signed checkpoint last covered every committed hop.",
            value=journal.signed_at_s,
        )
        yield disk_free({"journal": str(journal.path.parent)})


def histogram(name: str, help_text: str, durations: Durations) -> Metric:
    """Durations as a family of Prometheus."""
    buckets = [(bound, float(count)) for bound, count in durations.cumulative()]
    return HistogramMetricFamily(name, help_text, buckets=buckets, sum_value=durations.sum_s)


def disk_free(directories: dict[str, str]) -> Metric:
    """The bytes that an ordinary user may still write in each directory; one that is not there is left out."""
    family = GaugeMetricFamily("dovetail_disk_free_bytes", "Room left where this is kept.", labels=["kind"])
    for kind, directory in directories.items():
        try:
            status = os.statvfs(directory)
        except OSError:
            continue
        family.add_metric([kind], status.f_bavail * status.f_frsize)
    return family
