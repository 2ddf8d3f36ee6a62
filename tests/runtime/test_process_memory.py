"""A server's process keeps its memory between turns and commits."""

import platform
import subprocess
import sys

import pytest

COUNT_FAULTS = """
import resource, sys, threading
from dovetail.runtime.process_memory import keep_memory

def work():
    for _ in range(50):
        [bytes(1 << 20) for _ in range(6)]

if sys.argv[1] == "kept":
    keep_memory()
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for where in (work, lambda: [thread := threading.Thread(target=work), thread.start(), thread.join()]):
    where()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def count_faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", COUNT_FAULTS, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep memory")
def test_large_buffers_are_not_mapped_anew_each_time():
    assert count_faults("kept") * 10 < count_faults("returned")


def test_the_collector_does_not_look_at_what_existed_at_the_start():
    code = (
        "import gc; from dovetail.runtime.process_memory import keep_memory; keep_memory();"
        "print(gc.get_freeze_count() > 1000, len(gc.get_objects()) < 1000, gc.get_threshold()[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "50000"]
