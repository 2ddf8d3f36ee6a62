"""Checks of the machine: Python, Java, Spark, SQLite, file descriptors, the clock."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import resource
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator

from dovetail import fast
from dovetail.audit import jars
from dovetail.audit.java import Java, Rejected, find_java
from dovetail.site.doctor.finding import Finding, fail, ok, warn

MIN_PYTHON = (3, 11)
MIN_SQLITE = (3, 37)
NEWEST_KNOWN_JAVA = 25
MIN_DESCRIPTORS = 256
GOOD_DESCRIPTORS = 4096
EARLIEST_SANE_TIME = 1_767_225_600  # 2026-01-01 UTC: earlier than any machine that runs this
_CLOCK_SAMPLE_S = 0.1
_MAX_CLOCK_STEP_S = 0.02
_MAX_CLOCK_ERROR_US = 1_000_000
_SPARK_TIMEOUT_S = 180
_TIME_ERROR = 5
_AUDIT_ADVICE = "the audit needs it: make setup, or pip install 'dovetail[audit]'"


def check_machine() -> Iterator[Finding]:
    """Every check of the machine, one after another."""
    yield check_python()
    yield check_fast()
    java, rejected = find_java()
    is_needed = importlib.util.find_spec("pyspark") is not None
    yield check_java(java, rejected, java_home=os.environ.get("JAVA_HOME"), is_needed=is_needed)
    yield check_spark(jars.missing())
    yield check_sqlite(sqlite3.sqlite_version_info)
    yield check_descriptors(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield check_clock()
    yield check_synchronised(read_clock_state())


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """Check that this Python is new enough."""
    text = ".".join(map(str, version))
    if version < MIN_PYTHON:
        return fail("python", f"Python {text}", "install Python 3.11 or newer")
    return ok("python", f"Python {text} ({platform.python_implementation()}) in {sys.prefix}")


def check_fast() -> Finding:
    """Check that the per-message functions run in native code; without it everything works but costs more."""
    if fast.IMPLEMENTATION == "native":
        return ok("native code", f"in use: {fast.REASON}")
    return ok("native code", f"not in use: {fast.REASON}; with it a message costs about half (docs/how-to/native.md)")


def check_java(
    java: Java | None, rejected: list[Rejected], *, java_home: str | None, is_needed: bool = True
) -> Finding:
    """Which Java Spark would use; none is needed if Spark is not installed."""
    if java is None:
        seen = "; ".join(f"the one in {each.home} {each.why}" for each in rejected)
        detail = f"no Java 17 or newer found{': ' + seen if seen else ''}"
        if not is_needed:
            return warn("java", detail, "only the audit needs it, which is not installed")
        return fail("java", detail, "make setup fetches one; or install Java 17, 21 or 25, or set JAVA_HOME")
    detail = f"Java {java.version_text} in {java.home} (from {java.source})"
    if java_home and java.source != "JAVA_HOME":
        why = next((each.why for each in rejected if each.source == "JAVA_HOME"), "will not do")
        return warn("java", detail, f"JAVA_HOME={java_home} {why} and is ignored: correct or unset it")
    if java.version > NEWEST_KNOWN_JAVA:
        return warn("java", detail, f"newer than Java {NEWEST_KNOWN_JAVA}, the newest version tested with Spark")
    return ok("java", detail)


def check_spark(lacking: list[jars.Jar]) -> Finding:
    """Check that Spark, its Python dependencies and Delta Lake's Java archives are installed; imports none of them."""
    versions = {}
    for name in ("pyspark", "pyarrow", "pandas"):
        if importlib.util.find_spec(name) is None:
            return warn("spark", f"{name} is not installed", _AUDIT_ADVICE)
        versions[name] = importlib.metadata.version(name)
    detail = ", ".join(f"{name} {version}" for name, version in versions.items())
    if int(versions["pyspark"].split(".")[0]) != 4:
        return fail("spark", detail, "pyspark 4 is needed: make setup")
    if int(versions["pandas"].split(".")[0]) >= 3:
        return fail("spark", detail, "pandas 2 is needed: make setup")
    if lacking:
        path = jars.directory() / lacking[0].name
        return fail("spark", f"{detail}, but {path} is missing", f"fetch it: {sys.executable} -m dovetail.audit.jars")
    return ok("spark", detail)


def start_spark() -> Finding:
    """Start a real session in its own process and compute something in Java and in a Python worker."""
    java, _ = find_java()
    if java is None:
        return fail("spark session", "not started: there is no Java", "see the line on java")
    environment = {**os.environ, **java.environment(), "PYSPARK_PYTHON": sys.executable}
    started = time.monotonic()
    try:
        ran = subprocess.run(  # noqa: S603
            [sys.executable, "-c", _SPARK_SCRIPT],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SPARK_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return fail("spark session", f"no answer within {_SPARK_TIMEOUT_S} s", "check the machine's load and memory")
    took = time.monotonic() - started
    answer = ran.stdout.strip()
    if ran.returncode != 0 or not answer.endswith("499500 499500"):
        lines = [line for line in ran.stderr.splitlines() if line.strip()]
        detail = lines[-1].strip() if lines else f"exit {ran.returncode}"
        return fail("spark session", f"failed after {took:.0f} s: {detail}", "see the lines on java and spark")
    return ok("spark session", f"Spark {answer.split()[0]} on Java {java.version_text} computed a sum in {took:.0f} s")


def check_sqlite(version: tuple[int, ...]) -> Finding:
    """Check that the SQLite in this Python has the features used by journals."""
    text = ".".join(map(str, version))
    if version < MIN_SQLITE:
        return fail("sqlite", f"SQLite {text}", f"use a Python with SQLite {'.'.join(map(str, MIN_SQLITE))} or newer")
    return ok("sqlite", f"SQLite {text}")


def check_descriptors(soft: int, hard: int) -> Finding:
    """Check that enough files and connections may be open at once."""
    unlimited = resource.RLIM_INFINITY
    detail = f"{'unlimited' if soft == unlimited else soft} may be open at once"
    if soft == unlimited or soft >= GOOD_DESCRIPTORS:
        return ok("descriptors", detail)
    if hard == unlimited or hard > soft:
        most = GOOD_DESCRIPTORS if hard == unlimited else min(hard, GOOD_DESCRIPTORS)
        advice = f"each connection takes one: ulimit -n {most}"
    else:
        advice = "each connection takes one, and the hard limit is as low: raise it for the user or the service"
    return (fail if soft < MIN_DESCRIPTORS else warn)("descriptors", detail, advice)


def check_clock() -> Finding:
    """Check that the wall clock is plausible and runs as fast as the monotonic one."""
    wall, monotonic = time.time(), time.monotonic()
    time.sleep(_CLOCK_SAMPLE_S)
    step = (time.time() - wall) - (time.monotonic() - monotonic)
    return judge_clock(wall, step)


def judge_clock(wall: float, step: float) -> Finding:
    """Judge the clock; `step` is how much further the wall clock advanced than the monotonic one."""
    detail = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(wall))
    if wall < EARLIEST_SANE_TIME:
        return fail("clock", detail, "the date is in the past: set the clock; lifetimes and certificates depend on it")
    if abs(step) > _MAX_CLOCK_STEP_S:
        detail = f"{detail}, jumped {step * 1000:+.0f} ms during the check"
        return warn("clock", detail, "something is setting it; journals keep their order, but latencies will be wrong")
    return ok("clock", detail)


def check_synchronised(state: tuple[bool, int] | None) -> Finding:
    """Check that the system clock is synchronised; `state` is that and the error in microseconds."""
    if state is None:
        return ok("time server", "this system does not report whether its clock is synchronised")
    synchronised, error_us = state
    if not synchronised:
        advice = "run chrony, ntpd or systemd-timesyncd: the audit compares the times of several servers"
        return warn("time server", "the clock is not synchronised", advice)
    detail = f"the clock is synchronised, within {error_us / 1000:.0f} ms"
    if error_us > _MAX_CLOCK_ERROR_US:
        return warn(
            "time server", detail, "the time server has not been reached for a long time: check the time service"
        )
    return ok("time server", detail)


class _Timex(ctypes.Structure):
    """The first fields of `struct timex` (adjtimex(2)), and space for the others."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("rest", ctypes.c_byte * 512),
    )


def read_clock_state() -> tuple[bool, int] | None:
    """The kernel's clock state: whether it is synchronised, and the maximum error; None if unavailable."""
    if sys.platform != "linux":
        return None
    buffer = _Timex()  # modes = 0: only read
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(buffer))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else (state != _TIME_ERROR, int(buffer.maxerror))


_SPARK_SCRIPT = """
from pyspark.sql import SparkSession

from dovetail.audit.session import SMALL_JAVA

def pass_on(batches):
    yield from batches

spark = (
    SparkSession.builder.master("local[1]").appName("dovetail doctor").config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.extraJavaOptions", SMALL_JAVA).getOrCreate()
)
numbers = spark.range(1000)
in_java = numbers.selectExpr("sum(id)").first()[0]
in_python = numbers.mapInArrow(pass_on, "id bigint").selectExpr("sum(id)").first()[0]
print(spark.version, in_java, in_python)
spark.stop()
"""
