"""`audit run`: everything that is new in the lake becomes silver, then gold is brought to where silver is.

What is new is found by Structured Streaming over the manifests, since a manifest is written last and whole: its
checkpoint remembers which ones were seen, `availableNow` takes all others and stops. The same stream with a
processing-time trigger is `audit follow` (`following`). Gold is a function of all silver, whichever way it got there.
"""

from __future__ import annotations

import argparse
import datetime as dt
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dovetail.audit.active_manifests import active_facts, expected_manifests
from dovetail.audit.ingest_log import (
    BatchFacts,
    ManifestFact,
    altered_files,
    announced_rows,
    changed_manifests,
    learn_manifest,
    missing_files,
    newest_us,
    present_files,
    unannounced_files,
)
from dovetail.audit.integrity import Verdict, judge_servers
from dovetail.audit.jobs.batch import Batch
from dovetail.audit.jobs.gold import Gold, basis_of
from dovetail.audit.progress import Progress, silent
from dovetail.audit.session import SMALL_ROWS, SessionOptions, open_session, tune
from dovetail.audit.settings import AuditSettings, load_settings
from dovetail.audit.store import RunRecord, Store
from dovetail.audit.summary import Summary, summarize
from dovetail.lake.layout import MANIFESTS
from dovetail.lake.manifest import Manifest
from dovetail.lake.snapshot import check_lake
from dovetail.lake.store import LocalStore
from dovetail.model.errors import PipelineError
from dovetail.model.times import to_us

_FOREVER = "36500d"


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """An audit of one lake into one output directory; up to `whole_below` hops gold is always made anew."""

    spark: SparkSession
    lake: Path
    store: Store
    settings: AuditSettings
    as_of: dt.datetime | None = None
    progress: Progress = silent
    settling_s: float = 0
    """A file that no manifest announces is a finding only when it is so old."""
    whole_below: int = SMALL_ROWS

    def run(self) -> Summary:
        """Do what is new and return what a person wants to know first."""
        self.ingest()
        return self.conclude()

    def ingest(self) -> None:
        """Make silver of the manifests that were not seen before."""
        wait(self.stream(self.process).trigger(availableNow=True).start())

    def conclude(self) -> Summary:
        """Bring the gold tables to where silver is, and read the summary off them."""
        record = self.refresh()
        self.progress.step("summary")
        return summarize(self.store, record)

    def refresh(self) -> RunRecord:
        """Judge the lake as it is, and bring the gold tables to where silver is, if anything has changed."""
        everything = self.store.facts()
        facts = active_facts(everything)
        verdicts = self._judge(facts, everything)
        record = self._record(facts, verdicts)
        previous = self.store.run_record()
        if previous != record:
            gold = Gold(self.spark, self.store, self.settings, facts, record, self.progress.step, self.whole_below)
            gold.make(verdicts, previous)
        return record

    def stream(self, process: Callable[[DataFrame, int], None]) -> DataStreamWriter:
        """The stream of manifests, each batch given to `process`, without a trigger yet."""
        manifests = (
            self.spark.readStream.format("binaryFile")
            .option("maxFileAge", _FOREVER)
            .option("ignoreMissingFiles", "true")  # a compaction may have replaced a manifest since it was listed
            .schema("path string, modificationTime timestamp, length bigint, content binary")
            .load(str(self.lake / MANIFESTS / "*" / "[0-9]*.json"))
            .select("path")
        )
        return manifests.writeStream.option("checkpointLocation", str(self.store.stream)).foreachBatch(process)

    def process(self, rows: DataFrame, number: int) -> None:
        """Make silver of one batch of manifests."""
        lake = LocalStore(self.lake)
        manifests = [learn_manifest(lake, key) for key in sorted(_key_of(row["path"]) for row in rows.collect())]
        tune(self.spark, announced_rows(manifests))
        Batch(self.spark, lake, self.store, self.settings, number, self.progress.step).process(manifests)

    def _judge(self, facts: BatchFacts, everything: BatchFacts) -> list[Verdict]:
        lake = LocalStore(self.lake)
        expected = expected_manifests(lake, facts.manifests)
        present = present_files(lake)
        return judge_servers(
            facts.manifests,
            facts.files,
            trusted=self.settings.trusted,
            changed=changed_manifests(lake, expected),
            unannounced=unannounced_files(present, _believed(everything.manifests), self.settling_s),
            missing=missing_files(present, _believed(expected)),
            altered=altered_files(lake, present, facts.files),
            now_us=time.time_ns() // 1000,
        )

    def _record(self, facts: BatchFacts, verdicts: list[Verdict]) -> RunRecord:
        newest = newest_us(facts.files, time.time_ns() // 1000)
        as_of_us = newest if self.as_of is None else to_us(self.as_of)
        return RunRecord(
            lake=str(self.lake),
            batches=self.store.batch_ids(),
            as_of_us=as_of_us,
            fingerprint=f"{self.settings.fingerprint()} {[verdict.row() for verdict in verdicts]!r}",
            basis=basis_of(self.settings, facts),
        )


def wait(query: StreamingQuery) -> None:
    """Wait for a stream to end; PipelineError says in one line why it failed."""
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        cause = next((line for line in reversed(lines) if "Error" in line or "Exception" in line), lines[0])
        raise PipelineError(f"the audit stopped: {cause[:400]}") from error


def _believed(facts: Sequence[ManifestFact]) -> list[Manifest]:
    return [fact.manifest for fact in facts if fact.manifest is not None]


def _key_of(url: str) -> str:
    """The key of a manifest, from where Spark found it."""
    return "/".join(url.split("/")[-3:])


def build_parser() -> argparse.ArgumentParser:
    """The arguments under spark-submit; the command line has the same."""
    parser = argparse.ArgumentParser(prog="dovetail.audit.jobs.run", description="Audit a lake of sealed journals.")
    parser.add_argument("lake", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--master")
    parser.add_argument("--driver-memory")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--swarm", type=Path, action="append", default=[], metavar="FILE")
    parser.add_argument("--trust", type=Path, action="append", default=[], metavar="FILE")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the audit; for spark-submit."""
    arguments = build_parser().parse_args(argv)
    conf = dict(item.split("=", 1) for item in arguments.conf)
    lake = check_lake(arguments.lake)
    spark = open_session(SessionOptions(master=arguments.master, driver_memory=arguments.driver_memory, conf=conf))
    audit = Audit(
        spark=spark,
        lake=lake,
        store=Store.open(arguments.out),
        settings=load_settings(arguments.swarm, arguments.trust),
    )
    sys.stdout.write(audit.run().text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
