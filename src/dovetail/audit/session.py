"""The only place that builds a Spark session and sets its configuration.

On a laptop the session is `local[*]` inside this process; with a master's URL the same audit runs on a cluster, whose
workers need Python with the packages that we depend on: our own code is sent to them. Under `spark-submit` the master,
memory and code come from there, and only settings that affect the results are set here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark import SparkFiles
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from dovetail.audit import jars
from dovetail.audit.native import NATIVE_CLASSES
from dovetail.audit.package import ARCHIVE, pack
from dovetail.audit.stderr_filter import filtered_stderr, own_interrupt
from dovetail.model.errors import PipelineError

DEFAULT_MASTER = "local[*]"
_MEMORY_SHARE = 0.4
_MIN_MEMORY_MB = 1024
_MAX_MEMORY_MB = 16_384
_PARTITIONS_PER_CORE = 4
_ROWS_PER_PARTITION = 250_000
_MAX_PARTITIONS = 1000

# Settings that affect the results: times are UTC, and one bad value gives a null in its row instead of a failed job.
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
"""Columns of our tables, numbers or list elements, for which Parquet would build a dictionary only to drop it."""

_SPEED = {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "16384",
    "spark.sql.parquet.compression.codec": "zstd",
    # addresses do not compress: a higher level takes longer for the same size
    "spark.hadoop.parquet.compression.codec.zstd.level": "1",
    # sizes of values and histograms of levels: nothing uses them, and counting costs time per value
    "spark.hadoop.parquet.size.statistics.enabled": "false",
    **{f"spark.hadoop.parquet.enable.dictionary#{name}": "false" for name in _HARDLY_REPEATED},
    # one audit compiles about 450 classes; evicted ones are compiled again, twice, in the next run
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
    # table logs are small here: one partition for their state, not fifty
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.merge.materializeSource": "none",  # the source is already checkpointed
    "spark.databricks.delta.merge.repartitionBeforeWrite.enabled": "false",
    "spark.databricks.delta.properties.defaults.enableDeletionVectors": "false",
}

_STORE_VARIABLES = (
    *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
)

SMALL_ROWS = 200_000
"""A lake, or its new part, of up to this many hops is interpreted in one partition instead of compiled for many."""

SMALL_WORK = "spark.dovetail.small"
"""Our own setting: true if the work is small enough for one partition."""

_BY_SIZE = (
    (SMALL_WORK, "true", "false"),
    ("spark.sql.codegen.wholeStage", "false", "true"),
    ("spark.sql.codegen.factoryMode", "NO_CODEGEN", "FALLBACK"),
    ("spark.sql.adaptive.enabled", "false", "true"),
    # with one partition nothing needs a broadcast, which would be a separate job
    ("spark.sql.autoBroadcastJoinThreshold", "-1", str(10 << 20)),
    ("spark.sql.optimizer.disableHints", "true", "false"),
    # from this many files on, a job lists them instead of this process
    ("spark.sql.sources.parallelPartitionDiscovery.threshold", "100000", "32"),
)
SMALL_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
"""For a process that ends before the optimising compiler pays off."""

LARGE_JAVA = "-XX:+UseParallelGC -XX:-DontCompileHugeMethods"
"""Pauses do not matter, and the code that Spark generates for wide tables often exceeds Java's compilation limit."""

_CLASSES = (
    "functions",
    "org.apache.spark.sql.functions",
    "PythonUtils",
    "PythonSQLUtils",
    "org.apache.spark.sql.classic.SparkSession",
    *NATIVE_CLASSES,
)

_given: set[str] = set()
"""Settings given by the user: they are never tuned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """Options passed through from the command line."""

    master: str | None = None
    driver_memory: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    rows: int | None = None
    """Expected number of hops, if known."""
    has_s3: bool = False
    """True if the lake or the tables are in an object store."""


def open_session(options: SessionOptions | None = None) -> SparkSession:
    """The session of this process: the running one (as under spark-submit), or a new one."""
    options = options or SessionOptions()
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    settings = settings_of(options)
    use_this_python(is_local=_is_local(settings))
    use_found_java()
    builder = SparkSession.builder.appName("dovetail audit")
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with filtered_stderr(), own_interrupt():
            spark = builder.getOrCreate()
    except Exception as error:
        line = str(error).strip().splitlines()
        raise PipelineError(f"Spark does not start: {line[0] if line else type(error).__name__}") from error
    spark.sparkContext.setLogLevel("ERROR")
    if not _is_submitted() and not _is_local(settings):
        _send_package(spark)
    _cache_java_lookups(spark)
    _given.clear()
    _given.update(options.conf)
    return spark


def settings_of(options: SessionOptions) -> dict[str, str]:
    """All settings of a session; the user's come last and win."""
    settings = {**_MEANING, **_QUIET, **_SPEED, **_DELTA}
    if "spark.jars" not in options.conf and "spark.jars.packages" not in options.conf:
        settings["spark.jars"] = ",".join(str(path) for path in jars_for(has_s3=options.has_s3))
    if options.has_s3:
        settings.update(_object_store())
    if not _is_submitted():
        master = options.master or DEFAULT_MASTER
        settings["spark.master"] = master
        if master.startswith("local"):
            settings["spark.driver.memory"] = f"{machine_memory_mb()}m"
            is_small = options.rows is not None and options.rows <= SMALL_ROWS
            settings["spark.driver.extraJavaOptions"] = SMALL_JAVA if is_small else LARGE_JAVA
            # a task per file would read Hadoop's settings more often than files
            settings["spark.sql.sources.parallelPartitionDiscovery.parallelism"] = str(_tasks_at_once())
            settings["spark.driver.host"] = "127.0.0.1"
            settings["spark.driver.bindAddress"] = "127.0.0.1"
            settings["spark.executorEnv.PYTHONPATH"] = str(_package_root())
    if options.master is not None:
        settings["spark.master"] = options.master
    if options.driver_memory is not None:
        settings["spark.driver.memory"] = options.driver_memory
    settings.update(options.conf)
    return settings


def _send_package(spark: SparkSession) -> None:
    """Send our code to executors, from a file that Spark deletes at the end of the session."""
    archive = Path(SparkFiles.getRootDirectory()) / ARCHIVE
    archive.write_bytes(pack())
    spark.sparkContext.addPyFile(str(archive))


def _is_submitted() -> bool:
    return "SPARK_ENV_LOADED" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ


def _is_local(settings: Mapping[str, str]) -> bool:
    """True if executors are threads of the driver."""
    master = settings.get("spark.master", "")
    return master == "local" or master.startswith("local[")


def _object_store() -> dict[str, str]:
    """Settings that let Spark (`s3a:`) and Python on executors use the object store configured for this process.

    They come from environment variables. Spark itself passes the access keys to executors.
    """
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    settings = {f"spark.executorEnv.{name}": os.environ[name] for name in _STORE_VARIABLES if name in os.environ}
    if endpoint:
        settings["spark.hadoop.fs.s3a.path.style.access"] = "true"
        settings["spark.hadoop.fs.s3a.endpoint"] = endpoint
    if region:
        settings["spark.hadoop.fs.s3a.endpoint.region"] = region
    return settings


def require_spark() -> None:
    """Raise PipelineError if a local session could not start for want of Java or Delta Lake."""
    use_found_java()
    jars_for(has_s3=False)


def jars_for(*, has_s3: bool) -> list[Path]:
    """The archives for Spark, with those for object stores if needed; raises PipelineError if one is missing."""
    if lacking := jars.missing():
        raise PipelineError(
            f"Delta Lake is not installed: {jars.directory() / lacking[0].name} is missing; fetch it with "
            f"`{sys.executable} -m dovetail.audit.jars`"
        )
    if has_s3 and (lacking := jars.missing(jars.S3_LOCK)):
        raise PipelineError(
            f"Spark lacks a library for object stores: {jars.directory() / lacking[0].name} is missing; fetch it with "
            f"`{sys.executable} -m dovetail.audit.jars --s3`"
        )
    return jars.paths(with_s3=has_s3)


def read_files(spark: SparkSession, schema: StructType, paths: Iterable[str], **options: str) -> DataFrame:
    """The rows of exactly these Parquet files: paths are taken literally, never as glob patterns."""
    reader = spark.read.schema(schema).option("__globPaths__", "false")
    return reader.options(**options).parquet(*paths)


def tune(spark: SparkSession, rows: int) -> None:
    """Tune the session to the size of the work: a small lake costs less to interpret than to plan and compile."""
    is_small = rows <= SMALL_ROWS
    fitting = {key: small if is_small else large for key, small, large in _BY_SIZE}
    fitting["spark.sql.shuffle.partitions"] = str(partitions_for(rows))
    for key, value in fitting.items():
        if key not in _given:
            spark.conf.set(key, value)


def partitions_for(rows: int) -> int:
    """Number of shuffle partitions: the memory of one task must not grow with the lake.

    Adaptive execution coalesces small neighbours.
    """
    if rows <= SMALL_ROWS:
        return 1
    return max(_tasks_at_once(), min(-(-rows // _ROWS_PER_PARTITION), _MAX_PARTITIONS))


def _tasks_at_once() -> int:
    """Enough tasks for all processors to finish at about the same time."""
    return _PARTITIONS_PER_CORE * (os.cpu_count() or 2)


class _Remembered:
    """A Java class whose static members are each looked up once."""

    def __init__(self, java_class: Any) -> None:
        self._java_class = java_class

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._java_class, name)
        setattr(self, name, member)
        return member

    def __call__(self, *arguments: object) -> Any:
        return self._java_class(*arguments)


def _cache_java_lookups(spark: SparkSession) -> None:
    """Every use of a function looks up its Java class, which searches all archives for the shorter names, and then the
    method; and Java walks its whole stack to find where in the code a job was started.
    """
    for name in _CLASSES:
        known = getattr(spark._jvm, name)
        if not isinstance(known, _Remembered):
            setattr(spark._jvm, name, _Remembered(known))
    spark.sparkContext.setLocalProperty("callSite.long", "")


def is_one_partition(spark: SparkSession) -> bool:
    """True if the work is small enough for one partition."""
    return spark.conf.get(SMALL_WORK, "false") == "true"


def use_this_python(*, is_local: bool = True) -> None:
    """Workers run this interpreter, as others may lack packages; on a cluster or by spark-submit, the one named."""
    if "PYSPARK_PYTHON" in os.environ and ("PYSPARK_GATEWAY_PORT" in os.environ or not is_local):
        return
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


def use_found_java() -> None:
    """Make Spark start the Java that set-up would choose."""
    from dovetail.audit.java import find_java

    found, rejected = find_java()
    if found is None:
        seen = "; ".join(f"{java.home} {java.why}" for java in rejected) or "none was found"
        raise PipelineError(f"Spark needs Java 17 or newer: {seen}")
    os.environ.update(found.environment())


def machine_memory_mb() -> int:
    """A share of the machine's memory for the process that is both driver and executor."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    except (ValueError, OSError):
        return _MIN_MEMORY_MB
    return max(_MIN_MEMORY_MB, min(_MAX_MEMORY_MB, int(total * _MEMORY_SHARE)))


def _package_root() -> Path:
    """Where local workers find the package itself."""
    return Path(__file__).resolve().parents[2]
