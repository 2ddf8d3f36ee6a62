"""One audit in a process of its own, which runs whenever it is told to: what `audit_increments` measures.

It is started with the interpreter of the checkout whose code it runs, so that two revisions can be compared; before the
tables were Delta tables, the modules had other names. It takes one line of JSON for each run from stdin, `{"lake":
PATH, "tables": PATH}`, and answers with one: seconds, seconds of processor time, Spark jobs, the same of each step, and
memory. With `"ask": true` it answers what the audit has found instead.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.audit_lake import SETTINGS
from benchmarks.audit_spark import MemoryWatch, cpu_seconds


class Steps:
    """A progress reporter that records the seconds, CPU seconds and Spark jobs of each step."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self.begin()

    def begin(self) -> None:
        """Reset the records."""
        self.steps: dict[str, tuple[float, float, int]] = {}
        self._name, self._begun = "begin", self.now()

    def step(self, name: str) -> None:
        """End the current step and begin this one."""
        now, before = self.now(), self._begun
        seconds, cpu, jobs = self.steps.get(self._name, (0.0, 0.0, 0))
        self.steps[self._name] = (
            round(seconds + now[0] - before[0], 2),
            round(cpu + now[1] - before[1], 2),
            jobs + now[2] - before[2],
        )
        self._name, self._begun = name, now

    def now(self) -> tuple[float, float, int]:
        """The time, CPU seconds of this process and its descendants, and the number of jobs until now."""
        jobs = int(self._spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())
        return time.perf_counter(), time.process_time() + cpu_seconds(), jobs


class Follower:
    """One audit that follows one lake."""

    def __init__(self, package: str, spark: Any, lake: str, tables: str, whole_below: int) -> None:
        self.steps = Steps(spark)
        given = {"spark": spark, "lake": Path(lake), "settings": SETTINGS, "progress": self.steps}
        given["whole_below"] = whole_below
        if package == "dovetail.audit":
            run = importlib.import_module("dovetail.audit.run")
            self.audit = run.Audit(**given, tables=Path(tables))
            self.refresh: Callable[[], object] = self.audit.refresh
        else:
            run = importlib.import_module("dovetail.pipeline.jobs.run")
            store = importlib.import_module("dovetail.pipeline.store")
            self.audit = run.Audit(**given, store=store.Store.open(Path(tables)))
            self.refresh = self._ingest_and_refresh

    def _ingest_and_refresh(self) -> None:
        self.audit.ingest()
        self.audit.refresh()

    def run(self) -> dict[str, Any]:
        """Do one run and return its figures."""
        self.steps.begin()
        begun = self.steps.now()
        with MemoryWatch() as memory:
            self.refresh()
            ended = self.steps.now()
        self.steps.step("end")
        return {
            "seconds": round(ended[0] - begun[0], 2),
            "cpu_seconds": round(ended[1] - begun[1], 2),
            "jobs": ended[2] - begun[2],
            "peak_mb": memory.peak_mb,
            "steps": self.steps.steps,
        }

    def found(self) -> dict[str, Any]:
        """What the audit says about the lake as it is now."""
        summary = self.audit.run()
        return {
            "hops": summary.hops,
            "proven": all(server.verdict == "proven" for server in summary.servers),
            "found": {item.check: item.findings for item in summary.found},
        }


def main() -> int:
    """Answer requests until there are no more."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--driver-memory")
    parser.add_argument("--whole-below", type=int, required=True)
    arguments = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Java prints is no answer
    package = "dovetail.audit"
    try:
        session = importlib.import_module(f"{package}.session")
    except ModuleNotFoundError:
        package = "dovetail.pipeline"
        session = importlib.import_module(f"{package}.session")
    options = session.SessionOptions(master=f"local[{arguments.threads}]", driver_memory=arguments.driver_memory)
    spark = session.open_session(options)
    followers: dict[str, Follower] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        lake, tables = asked["lake"], asked["tables"]
        if tables not in followers:
            followers = {tables: Follower(package, spark, lake, tables, arguments.whole_below)}
        follower = followers[tables]
        answers.write(json.dumps(follower.found() if asked.get("ask") else follower.run()) + "\n")
        answers.flush()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
