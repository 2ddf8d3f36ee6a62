"""Spark on a Java started through the launcher for machines without Java."""

import json
import os
import shlex
import subprocess
import sys

import pytest

from dovetail.audit.java import VECTOR_MODULE, find_java, write_launcher

pytestmark = pytest.mark.system


def test_spark_computes_behind_the_launcher_and_the_module_is_dropped(tmp_path):
    java, _ = find_java()
    if java is None:
        pytest.skip("no Java here")
    # A runtime in between that records how it was started.
    runtime, started = tmp_path / "runtime", tmp_path / "started"
    (runtime / "bin").mkdir(parents=True)
    (runtime / "bin" / "java").write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$*" >>{shlex.quote(str(started))}\nexec {shlex.quote(str(java.executable))} "$@"\n'
    )
    (runtime / "bin" / "java").chmod(0o755)
    write_launcher(tmp_path / "home", runtime)
    ran = subprocess.run(
        [sys.executable, "-m", "dovetail", "doctor", "--spark", "--json"],
        env={**os.environ, "JAVA_HOME": str(tmp_path / "home")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    findings = {finding["check"]: finding for finding in map(json.loads, ran.stdout.splitlines())}
    assert findings["java"]["detail"].endswith(f"in {tmp_path / 'home'} (from JAVA_HOME)")
    assert findings["spark session"]["status"] == "ok", findings["spark session"]
    assert VECTOR_MODULE not in started.read_text().split("org.apache.spark.deploy.SparkSubmit")[0]
    assert "org.apache.spark.deploy.SparkSubmit" in started.read_text()
