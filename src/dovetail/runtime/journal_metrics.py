"""Metrics of a server's journal for Prometheus, the same for all fabrics."""

from __future__ import annotations

import os
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dovetail.journal.journal import Journal
from dovetail.model.durations import Durations


class JournalCollector(Collector):
    """Collects a journal's counters, and the free space on its disk."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families."""
        journal = self._journal
        for name, help_text, value in (
            ("queue_bytes", "Bytes waiting to be committed.", journal.queue_bytes),
            ("bytes", "Size of the journal file.", journal.path.stat().st_size if journal.path.exists() else 0),
        ):
            yield GaugeMetricFamily(f"dovetail_journal_{name}", help_text, value=value)
        yield CounterMetricFamily("dovetail_journal_hops", "Hops in the journal.", value=journal.size)
        yield histogram(
            "dovetail_journal_commit_seconds", "Duration of a group commit, including fsync.", journal.commit_times
        )
        yield histogram(
            "dovetail_journal_wait_seconds",
            "How long the first hop of a group waited for its commit.",
            journal.wait_times,
        )
        yield GaugeMetricFamily(
            "dovetail_checkpoint_age_seconds",
            "Time since a signed checkpoint last covered every committed hop.",
            value=journal.checkpoint_age_s,
        )
        yield disk_free({"journal": str(journal.path.parent)})


def histogram(name: str, help_text: str, durations: Durations) -> Metric:
    """Durations as a Prometheus family."""
    buckets = [(bound, float(count)) for bound, count in durations.cumulative()]
    return HistogramMetricFamily(name, help_text, buckets=buckets, sum_value=durations.sum_s)


def disk_free(directories: dict[str, str]) -> Metric:
    """The bytes that an ordinary user can still write in each directory; a missing directory is left out."""
    family = GaugeMetricFamily("dovetail_disk_free_bytes", "Free space on the disk that holds this.", labels=["kind"])
    for kind, directory in directories.items():
        try:
            status = os.statvfs(directory)
        except OSError:
            continue
        family.add_metric([kind], status.f_bavail * status.f_frsize)
    return family
