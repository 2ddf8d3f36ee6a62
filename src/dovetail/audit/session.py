"""The one place that builds a Spark session and sets its configuration.

On a laptop the session is `local[*]` inside this process; given a master's URL it is the same audit on a cluster, where
the workers need Python with the same packages at the same path, or an archive shipped with `--conf`. Under
`spark-submit` the master and memory come from there, and only what the audit's results depend on is set here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from dovetail.audit import jars
from dovetail.audit.native import NATIVE_CLASSES
from dovetail.audit.stderr_filter import own_interrupt, without_chatter
from dovetail.model.errors import PipelineError

DEFAULT_MASTER = "local[*]"
_MEMORY_SHARE = 0.4
_MIN_MEMORY_MB = 1024
_MAX_MEMORY_MB = 16_384
_PARTITIONS_PER_CORE = 4
_ROWS_PER_PARTITION = 250_000
_MAX_PARTITIONS = 1000

# What the results depend on: times are UTC, and one odd value gives a null in its row instead of a failed job.
_MEANING = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.parquet.mergeSchema": "false",
}
_QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
_HARDLY_REPEATED = (
    *("seq", "at", "created", "expires", "created_us", "expires_us", "child_created", "parent_expires"),
    *("accepted", "finished", "first_seen", "holders.list.element.since"),
    *("links.list.element.parent", "links.list.element.parent_expires_us"),
    *("message", "digest", "key", "child", "parent", "signed_digest", "signature", "fact"),
)
"""Columns of our tables, of numbers or within lists, for which Parquet would build a dictionary only to drop it."""

_SPEED = {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "16384",
    "spark.sql.parquet.compression.codec": "zstd",
    # addresses do not compress: a higher level takes longer for the same files
    "spark.hadoop.parquet.compression.codec.zstd.level": "1",
    # how long values are and how levels are spread: nobody asks, and each value would be counted for it
    "spark.hadoop.parquet.size.statistics.enabled": "false",
    **{f"spark.hadoop.parquet.enable.dictionary#{name}": "false" for name in _HARDLY_REPEATED},
    # one audit compiles about 450 classes; those that are forgotten are compiled again, twice, in the next run
    "spark.sql.codegen.cache.maxEntries": "2000",
    "spark.sql.parquet.filterPushdown": "true",
    # a hash table per partition instead of sorting both sides of a join, or all rows of an aggregation
    "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold": "128m",
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "200000",
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
}


_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # the log of a table is small here: its state is one partition, not fifty
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.merge.materializeSource": "none",  # it is checkpointed before
    "spark.databricks.delta.merge.repartitionBeforeWrite.enabled": "false",
    "spark.databricks.delta.properties.defaults.enableDeletionVectors": "false",
}

SMALL_ROWS = 200_000
"""A lake, or what is new in it, of so many hops is interpreted in one partition instead of compiled for many."""

SMALL_WORK = "spark.dovetail.small"
"""Our own setting: whether the work is so small that all of it is one partition."""

_BY_SIZE = (
    (SMALL_WORK, "true", "false"),
    ("spark.sql.codegen.wholeStage", "false", "true"),
    ("spark.sql.codegen.factoryMode", "NO_CODEGEN", "FALLBACK"),
    ("spark.sql.adaptive.enabled", "false", "true"),
    # where all is one partition nothing has to be sent round: a broadcast would be a job of its own
    ("spark.sql.autoBroadcastJoinThreshold", "-1", str(10 << 20)),
    ("spark.sql.optimizer.disableHints", "true", "false"),
    # from how many files on a job looks whether they are there, instead of this process itself
    ("spark.sql.sources.parallelPartitionDiscovery.threshold", "100000", "32"),
)
SMALL_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
"""For a process that ends before the optimising compiler has earned what it costs."""

LARGE_JAVA = "-XX:+UseParallelGC -XX:-DontCompileHugeMethods"
"""Pauses disturb nobody, and what Spark generates for wide tables is often longer than Java would compile."""

_CLASSES = (
    "functions",
    "org.apache.spark.sql.functions",
    "PythonUtils",
    "PythonSQLUtils",
    "org.apache.spark.sql.classic.SparkSession",
    *NATIVE_CLASSES,
)

_given: set[str] = set()
"""Settings that the user gave: they are never tuned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """What the command line passes through."""

    master: str | None = None
    driver_memory: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    rows: int | None = None
    """How many hops there will be, if that is known."""


def open_session(options: SessionOptions | None = None) -> SparkSession:
    """The session of this process: the running one (as under spark-submit), or a new one."""
    options = options or SessionOptions()
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    use_this_python()
    use_found_java()
    builder = SparkSession.builder.appName("dovetail audit")
    for key, value in settings_of(options).items():
        builder = builder.config(key, value)
    try:
        with without_chatter(), own_interrupt():
            spark = builder.getOrCreate()
    except Exception as error:
        line = str(error).strip().splitlines()
        raise PipelineError(f"spark does not start: {line[0] if line else type(error).__name__}") from error
    spark.sparkContext.setLogLevel("ERROR")
    _spare_questions(spark)
    _given.clear()
    _given.update(options.conf)
    return spark


def settings_of(options: SessionOptions) -> dict[str, str]:
    """All settings of a session; what the user gave comes last and wins."""
    is_submitted = "SPARK_ENV_LOADED" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ
    settings = {**_MEANING, **_QUIET, **_SPEED, **_DELTA}
    if "spark.jars" not in options.conf and "spark.jars.packages" not in options.conf:
        settings["spark.jars"] = ",".join(str(path) for path in delta_jars())
    settings["spark.executorEnv.PYTHONPATH"] = str(_package_root())
    settings.update(_object_store())
    if not is_submitted:
        master = options.master or DEFAULT_MASTER
        settings["spark.master"] = master
        if master.startswith("local"):
            settings["spark.driver.memory"] = f"{machine_memory_mb()}m"
            is_small = options.rows is not None and options.rows <= SMALL_ROWS
            settings["spark.driver.extraJavaOptions"] = SMALL_JAVA if is_small else LARGE_JAVA
            # a task for each file would read Hadoop's settings more often than files
            settings["spark.sql.sources.parallelPartitionDiscovery.parallelism"] = str(_tasks_at_once())
            settings["spark.driver.host"] = "127.0.0.1"
            settings["spark.driver.bindAddress"] = "127.0.0.1"
    if options.master is not None:
        settings["spark.master"] = options.master
    if options.driver_memory is not None:
        settings["spark.driver.memory"] = options.driver_memory
    settings.update(options.conf)
    return settings


def _object_store() -> dict[str, str]:
    """How `s3a:` finds what `s3:` means here: from the same variables as everything else."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    settings = {"spark.hadoop.fs.s3a.path.style.access": "true"} if endpoint else {}
    settings |= {"spark.hadoop.fs.s3a.endpoint": endpoint} if endpoint else {}
    return settings | ({"spark.hadoop.fs.s3a.endpoint.region": region} if region else {})


def delta_jars() -> list[Path]:
    """The archives of Delta Lake; PipelineError where set-up has not fetched them."""
    if lacking := jars.missing():
        raise PipelineError(
            f"Delta Lake is not there: {jars.directory() / lacking[0].name} is missing; fetch it with "
            f"`python -m dovetail.audit.jars`"
        )
    return jars.paths()


def tune(spark: SparkSession, rows: int) -> None:
    """Fit the session to the size of the work: planning and compiling cost more than interpreting a small lake does."""
    is_small = rows <= SMALL_ROWS
    fitting = {key: small if is_small else large for key, small, large in _BY_SIZE}
    fitting["spark.sql.shuffle.partitions"] = str(partitions_for(rows))
    for key, value in fitting.items():
        if key not in _given:
            spark.conf.set(key, value)


def partitions_for(rows: int) -> int:
    """Into how many parts rows are dealt out: what one task holds in memory must not grow with the lake.

    Adaptive execution puts small neighbours together again.
    """
    if rows <= SMALL_ROWS:
        return 1
    return max(_tasks_at_once(), min(-(-rows // _ROWS_PER_PARTITION), _MAX_PARTITIONS))


def _tasks_at_once() -> int:
    """Enough for all processors to end at about the same time."""
    return _PARTITIONS_PER_CORE * (os.cpu_count() or 2)


class _Remembered:
    """A Java class that is asked for each of its static members once."""

    def __init__(self, java_class: Any) -> None:
        self._java_class = java_class

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._java_class, name)
        setattr(self, name, member)
        return member

    def __call__(self, *arguments: object) -> Any:
        return self._java_class(*arguments)


def _spare_questions(spark: SparkSession) -> None:
    """Every use of a function asks Java for its class, which looks through all archives for the shorter names, and then
    for the method; and Java reads its whole stack to tell where in the code a job was started.
    """
    for name in _CLASSES:
        known = getattr(spark._jvm, name)
        if not isinstance(known, _Remembered):
            setattr(spark._jvm, name, _Remembered(known))
    spark.sparkContext.setLocalProperty("callSite.long", "")


def is_one_partition(spark: SparkSession) -> bool:
    """Whether the work is so small that all of it is one partition."""
    return spark.conf.get(SMALL_WORK, "false") == "true"


def use_this_python() -> None:
    """Workers run the interpreter that runs us, as others may lack our packages, unless spark-submit names one."""
    if "PYSPARK_GATEWAY_PORT" in os.environ and "PYSPARK_PYTHON" in os.environ:
        return
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


def use_found_java() -> None:
    """Spark starts the Java that set-up would choose."""
    from dovetail.audit.java import find_java

    found, rejected = find_java()
    if found is None:
        seen = "; ".join(f"{java.home} {java.why}" for java in rejected) or "none was found"
        raise PipelineError(f"spark needs Java 17 or newer: {seen}")
    os.environ.update(found.environment())


def machine_memory_mb() -> int:
    """A share of the machine's memory for the one process that is both driver and executor."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    except (ValueError, OSError):
        return _MIN_MEMORY_MB
    return max(_MIN_MEMORY_MB, min(_MAX_MEMORY_MB, int(total * _MEMORY_SHARE)))


def _package_root() -> Path:
    """Where workers of this machine find the package itself."""
    return Path(__file__).resolve().parents[2]
