"""A process that is started quietly says all but the chatter."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import subprocess, sys, time
from dovetail.pipeline.chatter import without_chatter

said = [
    "WARNING: Using incubator modules: jdk.incubator.vector",
    "26/11/16 02:04:03 WARN NativeCodeLoader: Unable to load native-hadoop library",
    "Setting default log level to WARN.",
    "26/11/16 02:04:03 ERROR Executor: out of memory",
    "java.lang.OutOfMemoryError: WARN",
]
with without_chatter():
    child = subprocess.Popen([sys.executable, "-c", f"import sys; sys.stderr.write({chr(10).join(said)!r} + chr(10))"])
print("ours", file=sys.stderr, flush=True)
child.wait()
time.sleep(1)
"""


def test_all_but_chatter_is_passed_on():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True)
    lines = ["26/11/16 02:04:03 ERROR Executor: out of memory", "java.lang.OutOfMemoryError: WARN", "ours"]
    assert sorted(done.stderr.splitlines()) == sorted(lines)
