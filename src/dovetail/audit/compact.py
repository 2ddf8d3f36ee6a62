"""Compaction on Spark: executors rewrite the files; everything else is in `lake.compact`.

Also a program for `spark-submit`, with the arguments of `audit compact`.
"""

from __future__ import annotations

import argparse
import datetime as dt
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

from dovetail.audit.decode import Batches
from dovetail.audit.session import SessionOptions, open_session
from dovetail.audit.settings import load_settings
from dovetail.keys.signing import load_signing_key
from dovetail.lake.compact import Compaction, parse_before
from dovetail.lake.compact_plan import CompactionTask
from dovetail.lake.location import is_url, open_store
from dovetail.lake.retain import DEFAULT_GRACE_S
from dovetail.lake.rewrite import Rewriter, Rewritten
from dovetail.lake.snapshot import check_lake

_MAX_PARTITIONS = 1024
_BLOB = pa.schema([("blob", pa.binary())])
_BLOB_SCHEMA = StructType([StructField("blob", BinaryType())])
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """For `mapInArrow`: one task per row."""

    rewriter: Rewriter

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        decoder = msgspec.msgpack.Decoder(CompactionTask)
        for batch in batches:
            done = [self.rewriter.rewrite(decoder.decode(blob)) for blob in batch.column("blob").to_pylist()]
            yield pa.RecordBatch.from_pydict({"blob": [_encode(item) for item in done]}, schema=_BLOB)


@dataclass(frozen=True, slots=True)
class SparkTasks:
    """Runs the tasks of a compaction on Spark's executors."""

    spark: SparkSession

    def __call__(self, rewriter: Rewriter, tasks: Sequence[CompactionTask]) -> Iterator[Rewritten]:
        """Use as many partitions as tasks, up to a limit."""
        rows = self.spark.createDataFrame([(bytearray(_encode(task)),) for task in tasks], _BLOB_SCHEMA)
        spread = rows.repartition(min(len(tasks), _MAX_PARTITIONS))
        decoder = msgspec.msgpack.Decoder(Rewritten)
        for row in spread.mapInArrow(_Rewrite(rewriter), _BLOB_SCHEMA).collect():
            yield decoder.decode(bytes(row["blob"]))


def main(argv: Sequence[str] | None = None) -> int:
    """Compact a lake; for spark-submit."""
    parser = argparse.ArgumentParser(prog="dovetail.audit.compact", description="Compact a lake.")
    parser.add_argument("lake")
    parser.add_argument("--before", required=True, metavar="DATE")
    parser.add_argument("--swarm", type=Path, action="append", default=[], metavar="FILE")
    parser.add_argument("--signing-key", type=Path, metavar="FILE")
    parser.add_argument("--grace", type=float, default=DEFAULT_GRACE_S, metavar="SECONDS")
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args(argv)
    before = parse_before(arguments.before, dt.datetime.now(dt.UTC))
    compaction = Compaction(
        store=open_store(check_lake(arguments.lake)),
        before=before,
        agreements=load_settings(arguments.swarm).named_agreements,
        signer=None if arguments.signing_key is None else load_signing_key(arguments.signing_key),
        is_dry=arguments.dry_run,
        grace_s=arguments.grace,
        run_tasks=SparkTasks(open_session(SessionOptions(has_s3=is_url(arguments.lake)))),
    )
    summary = compaction.run()
    sys.stdout.write(summary.text())
    return 1 if summary.left_alone else 0


if __name__ == "__main__":
    sys.exit(main())
