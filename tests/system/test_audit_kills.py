"""kill -9 of the audit's driver inside its commits: the next run gives what one that was never killed gives."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from audit.audit_worlds import SECOND, T0_US, whole_world, write_lake
from dovetail.audit.tables import read_runs
from oracle.audit_answers import ask_oracle, ask_tables

pytestmark = [pytest.mark.system, pytest.mark.timeout(3600)]

TESTS = Path(__file__).parents[1]
PROGRAM = """
import os, sys
from pathlib import Path
from audit.audit_worlds import SETTINGS, open_test_session
from dovetail.audit.lease import Lease
from dovetail.audit.run import Audit

root, left = Path(sys.argv[1]), int(sys.argv[2])
check = Lease.check

def die(self):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), 9)
    check(self)

Lease.check = die  # asked for before every commit
Audit(spark=open_test_session(), lake=root / "lake", tables=root / "out", settings=SETTINGS, whole_below=0).run()
"""


def run(root: Path, commits: int) -> int:
    """Run an audit that is killed before its commit of this number (0: never); its exit code."""
    environment = {**os.environ, "PYTHONPATH": f"{TESTS.parent / 'src'}:{TESTS}"}
    command = [sys.executable, "-c", PROGRAM, str(root), str(commits)]
    with subprocess.Popen(command, env=environment, start_new_session=True, stderr=subprocess.DEVNULL) as process:
        code = process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # Java outlives a driver that is killed for a moment
    return code


def kill_often(root: Path, kills: list[int]) -> None:
    """Two parts of a world: the first is audited whole, the second as an increment; each is killed again and again."""
    for part in range(2):
        write_lake(root, whole_world(3, 6, T0_US + part * 100 * SECOND))
        for commits in kills[part::2]:
            assert run(root, commits) == -signal.SIGKILL
            assert len(read_runs(root / "out")) == part, "a run that was killed is not there"
        assert run(root, 0) == 0
    assert ask_tables(root / "out") == ask_oracle(root)


def test_five_kills_change_nothing(tmp_path):
    kill_often(tmp_path, [2, 4, 9, 13, 17])


@pytest.mark.soak
def test_a_hundred_kills_change_nothing(tmp_path):
    rng = random.Random(1)
    kill_often(tmp_path, [rng.randrange(1, 18) for _ in range(100)])
