"""How the process of a command ends."""

import subprocess
import sys

ENDS = """
import atexit, os, sys, threading, time
import dovetail.cli.main

class Aborts:
    def __del__(self):
        os.abort()

sys.modules["kept until the interpreter is taken apart"] = Aborts()

def run():
    atexit.register(print, "tidied up")
    threading.Thread(target=lambda: (time.sleep(0.1), print("finished"))).start()
    return 3

dovetail.cli.main.main = run
from dovetail.__main__ import main
main()
"""


def test_threads_and_exit_handlers_are_done_and_no_library_can_abort_it():
    """Arrow's threads that still read ahead abort a process whose interpreter is taken apart under them."""
    ran = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (3, "finished\ntidied up\n", "")
