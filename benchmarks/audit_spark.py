"""The audit's own steps on Spark for the benchmark: all of them, or the core that DuckDB also runs."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the conventional name

from benchmarks.audit_duckdb import DECODED, LINKS
from benchmarks.audit_lake import SETTINGS
from dovetail.audit.fabrics import swarm
from dovetail.audit.native import sha256
from dovetail.audit.run import Audit
from dovetail.audit.session import SMALL_ROWS, tune
from dovetail.audit.sources import read_rows
from dovetail.audit.transforms.messages import links, undecoded
from dovetail.lake.store import LocalStore

_TICKS = os.sysconf("SC_CLK_TCK")


class Stopwatch:
    """A progress reporter that records the seconds and CPU seconds of each step."""

    def __init__(self) -> None:
        self.steps: dict[str, tuple[float, float]] = {}
        self._name, self._begun, self._cpu = "start", time.perf_counter(), cpu_seconds()

    def step(self, name: str) -> None:
        """End the current step and begin this one."""
        now, cpu = time.perf_counter(), cpu_seconds()
        seconds, used = self.steps.get(self._name, (0.0, 0.0))
        self.steps[self._name] = (round(seconds + now - self._begun, 1), round(used + cpu - self._cpu, 1))
        self._name, self._begun, self._cpu = name, now, cpu


class MemoryWatch:
    """The peak memory of this process, the JVM and Python's workers together; shared pages count once."""

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
        while not self._stop.wait(2):
            self.peak_mb = max(self.peak_mb, sum(map(_share_kb, [os.getpid(), *descendants()])) >> 10)


def _share_kb(pid: int) -> int:
    """A process's memory, with its share of shared pages."""
    lines = _read(f"/proc/{pid}/smaps_rollup", "").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def descendants() -> list[int]:
    """All descendants of this process."""
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
    """CPU seconds of all descendants of this process, including their ended children."""
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


def run_core(spark: SparkSession, lake: Path, out: Path) -> dict[str, float]:
    """Hash, work, fields, references and missing parents with the pipeline's own functions; the tables are in `out`.

    Returns seconds, CPU seconds and memory.
    """
    begun, cpu = time.perf_counter(), cpu_seconds()
    with MemoryWatch() as memory:
        _make_core(spark, lake, out)
    return {
        "seconds": round(time.perf_counter() - begun, 1),
        "cpu_seconds": round(cpu_seconds() - cpu, 1),
        "peak_mb": memory.peak_mb,
    }


def _make_core(spark: SparkSession, lake: Path, out: Path) -> None:
    paths = sorted(str(path.relative_to(lake)) for path in lake.glob("fabric=swarm/*/*.parquet"))
    hops = sum(pq.read_metadata(lake / path).num_rows for path in paths)
    tune(spark, max(hops, SMALL_ROWS + 1))  # always compiled: a small lake would run interpreted
    # in an audit, the scan has already compared each row's digest with its bytes
    rows = read_rows(spark, LocalStore(lake), paths).where(sha256(F.col("raw")) == F.col("message"))
    rows = rows.withColumn("digest", F.col("message"))
    waiting = undecoded(rows, None, audits=[swarm.AUDIT], agreements=SETTINGS.agreements)
    made = swarm.AUDIT.decode(waiting, SETTINGS.agreements)
    decoded = _written(spark, made.select(*DECODED), out / "decoded")
    referring = _written(spark, links(decoded), out / "links")
    known = decoded.select("fabric", F.col("key").alias("parent"))
    _written(spark, referring.join(known, on=["fabric", "parent"], how="left_anti").select(*LINKS), out / "gaps")


def _written(spark: SparkSession, rows: DataFrame, path: Path) -> DataFrame:
    rows.write.mode("overwrite").parquet(str(path))
    return spark.read.schema(rows.schema).parquet(str(path))


def run_audit(spark: SparkSession, lake: Path, out: Path) -> dict[str, Any]:
    """One whole audit: seconds, hops per second, steps and memory."""
    watch = Stopwatch()
    begun = time.perf_counter()
    with MemoryWatch() as memory:
        audit = Audit(spark=spark, lake=lake, tables=out, settings=SETTINGS, progress=watch)
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
