"""How fast the audit is: end to end and per step, beside DuckDB doing the core of the work on the same lake.

    python -m benchmarks.audit [--messages N ...] [--won N] [--cold] [--no-core|--only-core] [--driver-memory 4g]
                               [--json FILE]

For each size a lake is written (`audit_lake`): N swarm messages of about 200 bytes with up to four references, and
shares of pcp and won. Then, in one session that has done all of it once over a small lake (`--cold` leaves that out):

- `duckdb` and `core`: hash, work, fields, references and missing parents, by DuckDB's script and by the pipeline's
  functions: the same tables on both sides, written as Parquet, and compared row by row afterwards;
- `first`: the whole audit from nothing; `second`: after 1 % more; `third`: with nothing new.

`--won` adds a lake of won messages alone: what the audit decodes and verifies per second, beside signatures alone.
At the end stands what one message cost at each size, in microseconds, and the largest memory: the one stays the same
where time grows as the messages do, the other below a bound.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.audit_duckdb import compare, run_duckdb
from benchmarks.audit_lake import AGREEMENT, LakeWriter, Shares
from benchmarks.audit_spark import run_audit, run_core, signature_floor

DEFAULT_SIZES = (1_000_000, 10_000_000)
WARM_MESSAGES, WARM_MORE = 250_000, 50_000


def measure_size(
    spark: Any, root: Path, messages: int, threads: int, *, is_core: bool, is_core_only: bool
) -> dict[str, Any]:
    """Run all measurements on one lake."""
    lake, out = root / "lake", root / "out"
    writer = LakeWriter(lake, threads)
    begun = time.perf_counter()
    writer.seal(Shares.of(messages))
    result: dict[str, Any] = {"messages": messages, "written_s": round(time.perf_counter() - begun, 1)}
    say(f"{messages:,} messages: lake written in {result['written_s']} s")
    if is_core:
        result |= measure_core(spark, root, threads)
    if is_core_only:
        return result
    for name, more in (("first", 0), ("second", messages // 100), ("third", 0)):
        if more:
            writer.seal(Shares.of(more))
        result[name] = run_audit(spark, lake, out)
        say_run(name, result[name])
    result["second_share"] = round(result["second"]["seconds"] / result["first"]["seconds"], 3)
    say(f"  second / first {result['second_share']:.1%}")
    return result


def measure_core(spark: Any, root: Path, threads: int) -> dict[str, Any]:
    """Run the core with Spark and with DuckDB on the lake in `root`, and check that both produce the same tables."""
    core = run_core(spark, root / "lake", root / "core")
    duckdb, duckdb_cpu = run_duckdb(root / "lake", root / "duckdb", threads, AGREEMENT)
    result: dict[str, Any] = {"rows": compare(root / "core", root / "duckdb")}
    shutil.rmtree(root / "core")
    shutil.rmtree(root / "duckdb")
    ratio, cpu_ratio = core["seconds"] / duckdb, core["cpu_seconds"] / duckdb_cpu
    say(f"  core {core['seconds']:.1f} s, DuckDB {duckdb:.1f} s: {ratio:.2f} times; {core['peak_mb']:,} MB")
    say(f"  of processor time: core {core['cpu_seconds']:.1f} s, DuckDB {duckdb_cpu:.1f} s: {cpu_ratio:.2f} times")
    return result | {
        "core": core,
        "duckdb": {"seconds": round(duckdb, 1), "cpu_seconds": round(duckdb_cpu, 1)},
        "core_ratio": round(ratio, 2),
        "core_cpu_ratio": round(cpu_ratio, 2),
    }


def measure_won(spark: Any, root: Path, messages: int, threads: int) -> dict[str, Any]:
    """Decode and verify won messages, compared with verifying signatures alone."""
    lake = root / "lake"
    LakeWriter(lake, threads).seal(Shares(0, 0, messages))
    audited = run_audit(spark, lake, root / "out")
    decode = audited["steps"]["messages: decode"][0]
    verify = audited["steps"]["messages: verify signatures"][0]
    result = {
        "messages": messages,
        "decoded_per_s": round(messages / decode),
        "verified_per_s": round(messages / verify),
        "floor_per_s": round(signature_floor() * threads),
        "audit": audited,
    }
    say(f"won: {messages:,} messages, decoded {result['decoded_per_s']:,}/s, verified {result['verified_per_s']:,}/s;")
    say(f"  signatures alone on {threads} cores {result['floor_per_s']:,}/s")
    say_run("won", audited)
    return result


def warm_up(spark: Any, root: Path, threads: int, *, is_core_only: bool) -> None:
    """Run everything on a small lake, then again after it has grown, so that the measured code is compiled."""
    writer = LakeWriter(root / "lake", threads)
    writer.seal(Shares.of(WARM_MESSAGES))
    run_core(spark, root / "lake", root / "core")
    if not is_core_only:
        say_run("warm", run_audit(spark, root / "lake", root / "out"))
        writer.seal(Shares.of(WARM_MORE))
        say_run("again", run_audit(spark, root / "lake", root / "out"))


def say_run(name: str, run: dict[str, Any]) -> None:
    """Print one run in a few lines."""
    speed = f"{run['seconds']:>7.1f} s {run['hops_per_s']:>9,} hops/s"
    say(f"  {name:<7} {speed}  {run['peak_mb']:,} MB  {run['cpu_seconds']} s of processor time")
    steps = (f"{step} {seconds}/{cpu}" for step, (seconds, cpu) in run["steps"].items())
    say("          " + ", ".join(steps))


def say_growth(sizes: list[dict[str, Any]]) -> None:
    """Print the cost per message at each size, and the peak memory."""
    for size in sizes:
        costs = (
            f"{name} {run['seconds'] / size['messages'] * 1e6:.1f} us"
            f" ({run['cpu_seconds'] / size['messages'] * 1e6:.1f} of processor time"
            + (f", {run['peak_mb']:,} MB)" if "peak_mb" in run else ")")
            for name in ("duckdb", "core", "first")
            if (run := size.get(name)) is not None
        )
        say(f"{size['messages']:>12,} messages, each: " + "; ".join(costs))


def say(text: str) -> None:
    """Print progress to stderr."""
    sys.stderr.write(text + "\n")


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, nargs="*", default=list(DEFAULT_SIZES))
    parser.add_argument("--won", type=int, default=20_000)
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cold", action="store_true", help="measure in a session that has done nothing before")
    parser.add_argument("--no-core", action="store_true", help="leave out DuckDB, which keeps all in memory")
    parser.add_argument("--only-core", action="store_true", help="nothing but the core and DuckDB")
    parser.add_argument("--driver-memory", help="the size of Java's heap, instead of a share of the machine's memory")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    arguments = parser.parse_args(argv)
    from dovetail.audit.session import SessionOptions, open_session

    spark = open_session(SessionOptions(master=f"local[{arguments.threads}]", driver_memory=arguments.driver_memory))
    spark.range(10).count()
    results: dict[str, Any] = {"threads": arguments.threads, "sizes": []}
    if not arguments.cold:
        with tempfile.TemporaryDirectory(prefix="bench-audit-", dir=arguments.dir) as root:
            warm_up(spark, Path(root), arguments.threads, is_core_only=arguments.only_core)
    for messages in arguments.messages:
        with tempfile.TemporaryDirectory(prefix="bench-audit-", dir=arguments.dir) as root:
            results["sizes"].append(
                measure_size(
                    spark,
                    Path(root),
                    messages,
                    arguments.threads,
                    is_core=not arguments.no_core,
                    is_core_only=arguments.only_core,
                )
            )
    say_growth(results["sizes"])
    if arguments.won and not arguments.only_core:
        with tempfile.TemporaryDirectory(prefix="bench-audit-", dir=arguments.dir) as root:
            results["won"] = measure_won(spark, Path(root), arguments.won, arguments.threads)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
