"""The supervisor with small real processes, each one line of Python."""

import asyncio
import os
import signal
import sys

import pytest

from dovetail.site.supervisor import MAX_TAKEN, Listener, Plan, Rules, State, Supervisor

pytestmark = pytest.mark.system

QUICK = Rules(restart_min_s=0.01, restart_max_s=0.02, well_after_s=60, grace_s=10)
READY = "import time, sys, os, signal; print('ready {\"port\": 7}', flush=True); "
FOR_EVER = READY + "time.sleep(600)"


class Record(Listener):
    """Records everything, and stops the supervisor when `when` says so."""

    def __init__(self, when=lambda record: False) -> None:
        self.changes: list[tuple[str, State, str]] = []
        self.lines: list[tuple[str, str, bool]] = []
        self.well: list[int] = []
        self.when = when
        self.supervisor: Supervisor | None = None

    def changed(self, name: str, state: State, detail: str) -> None:
        self.changes.append((name, state, detail))
        self._look()

    def became_healthy(self, count: int) -> None:
        self.well.append(count)

    def wrote(self, name: str, line: str, *, is_error: bool) -> None:
        self.lines.append((name, line, is_error))
        self._look()

    def _look(self) -> None:
        if self.when(self):
            self.supervisor.stop()

    def states(self, name: str) -> list[State]:
        return [state for each, state, _ in self.changes if each == name]

    def count(self, name: str, state: State) -> int:
        return self.states(name).count(state)


def supervise(record: Record, scripts: dict[str, str | tuple[str, int]], rules: Rules = QUICK) -> bool:
    """Run scripts, by name, each with its stage; True if none was given up."""
    plans = []
    for name, script in scripts.items():
        text, stage = script if isinstance(script, tuple) else (script, 1)
        plans.append(Plan(name=name, command=[sys.executable, "-c", text], stage=stage))

    async def run() -> bool:
        record.supervisor = Supervisor(plans, rules, record, draw=lambda: 0.0)
        async with asyncio.timeout(60):
            return await record.supervisor.run()

    return asyncio.run(run())


def test_lines_go_through_with_their_names_and_the_ready_line_is_a_change():
    script = READY + "print('data', flush=True); print('talk', file=sys.stderr, flush=True); time.sleep(600)"
    record = Record(when=lambda record: len(record.lines) == 2)
    assert supervise(record, {"a": script})
    assert sorted(record.lines) == [("a", "data", False), ("a", "talk", True)]
    assert record.states("a") == [State.STARTING, State.RUNNING, State.STOPPED]
    assert ("a", State.RUNNING, "port 7") in record.changes


def test_one_that_is_killed_is_started_again():
    record = Record(when=lambda record: record.count("a", State.RUNNING) == 2)

    def kill(record: Record) -> bool:
        if record.count("a", State.RUNNING) == 1 and record.states("a")[-1] is State.RUNNING:
            os.kill(record.supervisor.pids["a"], signal.SIGKILL)
        return record.count("a", State.RUNNING) == 2

    record.when = kill
    assert supervise(record, {"a": FOR_EVER})
    assert record.well == [1, 1], "told each time it is well again"
    assert ("a", State.WAITING, "was killed by SIGKILL; starts again in 0.0 s") in record.changes
    restarts = record.supervisor.registry.get_sample_value("dovetail_process_restarts_total", {"process": "a"})
    assert restarts == 1


def test_one_that_keeps_failing_is_tried_again_and_its_error_told():
    record = Record(when=lambda record: record.count("a", State.WAITING) == 8)
    assert supervise(record, {"a": "import sys; sys.exit('dovetail: no room on the disk')"})
    told = {detail for _, state, detail in record.changes if state is State.WAITING}
    assert told == {"no room on the disk; starts again in 0.0 s"}
    assert record.lines == []


def test_misconfiguration_is_given_up_at_once_and_the_others_run_on():
    failing = "import sys; print('dovetail: the key is missing', file=sys.stderr); sys.exit(2)"
    record = Record(when=lambda record: {"good", "bad"} <= _settled(record))
    assert not supervise(record, {"bad": failing, "good": FOR_EVER})
    assert record.states("bad") == [State.STARTING, State.GIVEN_UP]
    assert record.states("good") == [State.STARTING, State.RUNNING, State.STOPPED]
    assert ("bad", State.GIVEN_UP, "the key is missing") in record.changes
    assert record.well == []


def _settled(record: Record) -> set[str]:
    return {name for name, state, _ in record.changes if state in (State.RUNNING, State.GIVEN_UP)}


def test_when_all_are_given_up_it_ends():
    record = Record()
    assert not supervise(record, {"a": "import sys; sys.exit(2)"})
    assert record.supervisor.health() == "a: given up: ended with exit code 2"


def test_a_taken_port_is_tried_a_few_times():
    script = "import sys; print('dovetail: port 1 is in use', file=sys.stderr); sys.exit(75)"
    record = Record()
    assert not supervise(record, {"a": script})
    assert record.count("a", State.STARTING) == MAX_TAKEN
    assert record.changes[-1] == ("a", State.GIVEN_UP, f"port 1 is in use (tried {MAX_TAKEN} times)")


def test_a_command_that_is_not_there_is_told_of():
    record = Record(when=lambda record: record.count("a", State.WAITING) == 1)

    async def run() -> None:
        plan = Plan(name="a", command=["/does/not/exist"], stage=1)
        record.supervisor = Supervisor([plan], QUICK, record)
        await record.supervisor.run()

    asyncio.run(run())
    assert "cannot be started: No such file or directory" in record.changes[0][2]


def test_stages_stop_one_after_another():
    end = "lambda *_: (time.sleep(0.3), print('bye', flush=True), sys.exit())"
    script = f"import signal, time, sys; signal.signal(signal.SIGTERM, {end}); " + FOR_EVER
    record = Record(when=lambda record: len(_settled(record)) == 3 and not record.lines)
    assert supervise(record, {"last": (script, 2), "first": (script, 0), "middle": (script, 1)})
    assert [name for name, line, _ in record.lines if line == "bye"] == ["first", "middle", "last"]


def test_one_that_does_not_end_in_time_is_killed():
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + FOR_EVER
    record = Record(when=lambda record: record.count("a", State.RUNNING) == 1)
    rules = Rules(restart_min_s=0.01, restart_max_s=0.02, well_after_s=60, grace_s=0.3)
    assert supervise(record, {"a": stubborn}, rules)
    assert "did not exit in time and is killed" in [detail for _, _, detail in record.changes]


def test_a_second_stop_does_not_wait_for_the_grace_time():
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + FOR_EVER
    record = Record(when=lambda record: record.count("a", State.RUNNING) == 1)

    async def run() -> None:
        plan = Plan(name="a", command=[sys.executable, "-c", stubborn], stage=1)
        record.supervisor = Supervisor([plan], Rules(grace_s=600), record)
        asyncio.get_running_loop().call_later(2, record.supervisor.stop)
        await record.supervisor.run()

    asyncio.run(run())
    assert record.count("a", State.STOPPED) == 1


@pytest.mark.timeout(45)
def test_a_grandchild_that_holds_the_pipes_does_not_hide_the_end():
    script = READY + (
        "import subprocess; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    record = Record(when=lambda record: record.count("a", State.WAITING) == 1)
    assert supervise(record, {"a": script})


def test_health_names_who_does_not_work():
    seen = []

    def look(record: Record) -> bool:
        seen.append(record.supervisor.health())
        return record.count("a", State.RUNNING) == 1

    record = Record(when=look)
    supervise(record, {"a": FOR_EVER})
    assert seen[0].startswith("a: starting: process ")
    assert [health == "ok" for health in seen] == [False, True, False]
