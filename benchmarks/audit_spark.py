"""The audit's own steps on Spark, as the benchmark runs them: all of them, or the core that DuckDB does too."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by

from benchmarks.audit_duckdb import DECODED, LINKS
from benchmarks.audit_lake import SETTINGS
from dovetail.audit.native import sha256
from dovetail.audit.run import Audit
from dovetail.audit.session import SMALL_ROWS, tune
from dovetail.audit.sources import read_rows
from dovetail.audit.transforms.messages import links, undecoded, widen_swarm
from dovetail.audit.transforms.swarm_messages import swarm_fields
from dovetail.lake.store import LocalStore

_TICKS = os.sysconf("SC_CLK_TCK")


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
    """The most memory that this process, the JVM and Python's workers had together; shared pages count once."""

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
    """A process's memory, with its share of what it has in common with others."""
    lines = _read(f"/proc/{pid}/smaps_rollup", "").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


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


def run_core(spark: SparkSession, lake: Path, out: Path) -> dict[str, float]:
    """Hash, work, fields, references and missing parents with the pipeline's own functions; the tables are in `out`.

    Seconds, seconds of processor time and memory.
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
    tune(spark, max(hops, SMALL_ROWS + 1))  # interpreted, a small lake would be another matter
    # in an audit the walk has compared each row's digest with its bytes before
    rows = read_rows(spark, LocalStore(lake), paths).where(sha256(F.col("raw")) == F.col("message"))
    targets = {name: rules.pow_target for name, rules in SETTINGS.swarms.items()}
    waiting = undecoded(rows.withColumn("digest", F.col("message")), None, targets=targets)
    made = widen_swarm(swarm_fields(waiting, epochs=SETTINGS.epochs))
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
