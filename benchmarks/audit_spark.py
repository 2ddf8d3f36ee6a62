"""The audit's own steps on Spark, as the benchmark runs them: all of them, or the core that DuckDB does too."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by

from benchmarks.audit_lake import SETTINGS
from dovetail.pipeline.decode import DECODER_INPUT
from dovetail.pipeline.decode_swarm import DECODED_SWARM_SCHEMA, SwarmDecoder
from dovetail.pipeline.jobs.run import Audit
from dovetail.pipeline.session import tune
from dovetail.pipeline.sources import read_rows
from dovetail.pipeline.store import Store
from dovetail.pipeline.tablefiles import plain_columns
from dovetail.pipeline.transforms.messages import decodable, links, widen_swarm

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Stopwatch:
    """A progress that notes how long each step took, in seconds and in seconds of processor time."""

    def __init__(self) -> None:
        self.steps: dict[str, tuple[float, float]] = {}
        self._name, self._begun, self._cpu = "start", time.perf_counter(), cpu_seconds()

    def step(self, name: str) -> None:
        """This step begins now."""
        now, cpu = time.perf_counter(), cpu_seconds()
        seconds, used = self.steps.get(self._name, (0.0, 0.0))
        self.steps[self._name] = (round(seconds + now - self._begun, 1), round(used + cpu - self._cpu, 1))
        self._name, self._begun, self._cpu = name, now, cpu


class MemoryWatch:
    """The largest sum of resident memory of this process's children: the JVM and Python's workers."""

    def __init__(self) -> None:
        self.peak_mb = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.5):
            resident = sum(int(_read(f"/proc/{pid}/statm", "0 0").split()[1]) for pid in descendants()) * _PAGE
            self.peak_mb = max(self.peak_mb, resident >> 20)


def descendants() -> list[int]:
    """All processes below this one."""
    parents: dict[int, list[int]] = {}
    for name in (path.name for path in Path("/proc").iterdir()):
        if name.isdigit():
            fields = _read(f"/proc/{name}/stat", "").rpartition(")")[2].split()
            if len(fields) > 1:
                parents.setdefault(int(fields[1]), []).append(int(name))
    found, waiting = [], [os.getpid()]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


def cpu_seconds() -> float:
    """Processor time of all processes below this one, ended children of theirs included."""
    ticks = 0
    for pid in descendants():
        fields = _read(f"/proc/{pid}/stat", "").rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15])) if len(fields) > 15 else 0
    return ticks / _TICKS


def _read(path: str, default: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return default


def run_core(spark: SparkSession, lake: Path, scratch: Path) -> tuple[float, float, dict[str, int]]:
    """Hash, work, references and missing parents with the pipeline's own functions; its tables are Parquet.

    Seconds, seconds of processor time, and what was found.
    """
    begun, cpu = time.perf_counter(), cpu_seconds()
    paths = sorted(str(path.relative_to(lake)) for path in lake.glob("fabric=swarm/*/*.parquet"))
    tune(spark, 1 << 40)
    # hashed in the filter alone: a column that is filtered by would be computed a second time
    true = F.unhex(F.sha2("raw", 256)) == F.col("message")
    rows = read_rows(spark, lake, paths).where(true).withColumn("digest", F.col("message"))
    targets = {name: rules.pow_target for name, rules in SETTINGS.swarms.items()}
    waiting = decodable(rows, targets=targets).select(*DECODER_INPUT)
    decoded = waiting.mapInArrow(SwarmDecoder(SETTINGS.epochs), DECODED_SWARM_SCHEMA)
    wide = widen_swarm(decoded).select(
        "fabric", "message", "key", "work_valid", "address_valid", "created_us", "links", "reject"
    )
    wide.write.mode("overwrite").options(**plain_columns(wide.schema)).parquet(str(scratch / "decoded"))
    made = spark.read.parquet(str(scratch / "decoded"))
    edges = links(made).select("child", "parent")
    missing = edges.join(made.select(F.col("key").alias("parent")), on="parent", how="left_anti")
    missing.write.mode("overwrite").parquet(str(scratch / "gaps"))
    seconds, used = time.perf_counter() - begun, cpu_seconds() - cpu
    found = {
        "messages": made.count(),
        "valid": made.where("address_valid").count(),
        "worked": made.where("work_valid").count(),
        "links": edges.count(),
        "gaps": spark.read.parquet(str(scratch / "gaps")).count(),
    }
    shutil.rmtree(scratch)
    return seconds, used, found


def run_audit(spark: SparkSession, lake: Path, out: Path) -> dict[str, Any]:
    """One whole audit: seconds, hops per second, steps and memory."""
    watch = Stopwatch()
    begun = time.perf_counter()
    with MemoryWatch() as memory:
        audit = Audit(spark=spark, lake=lake, store=Store.open(out), settings=SETTINGS, progress=watch)
        summary = audit.run()
    seconds = time.perf_counter() - begun
    watch.step("end")
    return {
        "seconds": round(seconds, 1),
        "cpu_seconds": round(sum(cpu for _, cpu in watch.steps.values()), 1),
        "hops": summary.hops,
        "hops_per_s": round(summary.hops / seconds),
        "peak_mb": memory.peak_mb,
        "proven": all(server.verdict == "proven" for server in summary.servers),
        "found": {item.check: item.findings for item in summary.found},
        "steps": watch.steps,
    }


def signature_floor(count: int = 2000) -> float:
    """Ed25519 signatures verified per second on one core, and nothing else."""
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    public, digest = key.public_key(), bytes(32)
    signature = key.sign(digest)
    begun = time.perf_counter()
    for _ in range(count):
        public.verify(signature, digest)
    return count / (time.perf_counter() - begun)
