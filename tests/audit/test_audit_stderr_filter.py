"""A process started with filtered stderr prints everything else, and Ctrl-C waits for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import subprocess, sys, time
from dovetail.audit.stderr_filter import filtered_stderr

said = [
    "WARNING: Using incubator modules: jdk.incubator.vector",
    "26/11/16 02:04:03 WARN NativeCodeLoader: Unable to load native-hadoop library",
    "Setting default log level to WARN.",
    "26/11/16 02:04:03 ERROR Executor: out of memory",
    "java.lang.OutOfMemoryError: WARN",
]
with filtered_stderr():
    child = subprocess.Popen([sys.executable, "-c", f"import sys; sys.stderr.write({chr(10).join(said)!r} + chr(10))"])
print("ours", file=sys.stderr, flush=True)
child.wait()
time.sleep(1)
"""


@pytest.mark.exhaustive
def test_all_but_chatter_is_passed_on():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True)
    lines = ["26/11/16 02:04:03 ERROR Executor: out of memory", "java.lang.OutOfMemoryError: WARN", "ours"]
    assert sorted(done.stderr.splitlines()) == sorted(lines)


PRESSED = """
import signal
from dovetail.audit.stderr_filter import own_interrupt

try:
    with own_interrupt():
        for _ in range({times}):
            signal.raise_signal(signal.SIGINT)
            print("goes on")
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as Spark sets its own
    print("nobody was told")
except KeyboardInterrupt:
    print("interrupted")
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (0, ["nobody was told", "True"]),
        (1, ["goes on", "interrupted", "True"]),
        (2, ["goes on", "interrupted", "True"]),
    ],
)
def test_the_first_interrupt_waits_and_the_second_does_not(times, said):
    command = [sys.executable, "-c", PRESSED.format(times=times)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == said
