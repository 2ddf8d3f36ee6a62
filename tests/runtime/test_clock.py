"""Clocks that jump: one wrong reading changes nothing, a step is recorded, hop times neither freeze nor go back."""

import gc
from collections import Counter

from dovetail.journal.journal import Journal
from dovetail.journal.verify import verify_journal
from dovetail.model.hop import Reason, Stage
from dovetail.runtime.clock import CONFIRMED_AFTER_US, Clock, note_clock_steps
from journal.worlds import SERVER, SIGNER, START_US, observe, open_writer

SECOND, HOUR, YEAR = 10**6, 3600 * 10**6, 365 * 86_400 * 10**6


class Machine:
    """A machine whose clock can be set."""

    def __init__(self):
        self.wall_us, self.steady_us = START_US, 0
        self.steps = []
        self.clock = Clock(lambda: self.wall_us, lambda: self.steady_us)
        self.clock.on_step.append(lambda step_us, _: self.steps.append(step_us))

    def wait(self, us):
        self.wall_us += us
        self.steady_us += us
        return self.clock.now_us()


def test_one_reading_a_year_ahead_is_not_believed():
    machine = Machine()
    machine.wall_us += YEAR
    assert machine.wait(SECOND) == START_US + SECOND
    machine.wall_us -= YEAR
    assert machine.wait(SECOND) == START_US + 2 * SECOND
    assert machine.steps == []


def test_a_clock_that_stays_ahead_is_believed_after_a_while_and_noted():
    machine = Machine()
    machine.wall_us += YEAR
    machine.wait(SECOND)
    assert machine.wait(CONFIRMED_AFTER_US - 1) < START_US + HOUR
    assert machine.wait(1) == machine.wall_us
    assert machine.steps == [YEAR]


def test_small_steps_are_believed_at_once_and_noted_from_a_second_on():
    machine = Machine()
    for step in (SECOND // 2, 30 * SECOND, -HOUR):
        machine.wall_us += step
        assert machine.wait(SECOND) == machine.wall_us
    assert machine.steps == [30 * SECOND, -HOUR]


def test_a_step_is_a_hop_of_the_journal(tmp_path):
    machine = Machine()
    with Journal.open(tmp_path / "a.journal", server=SERVER, signer=SIGNER) as journal:
        note_clock_steps(journal, machine.clock)
        machine.wall_us -= HOUR
        machine.wait(0)
        journal.flush()
        (hop,) = journal.hops()
    assert (hop.stage, hop.reason, hop.counterpart) == (Stage.NOTED, Reason.CLOCK_STEPPED, "clock -3600.000 s")


def test_a_clock_forgets_journals_that_are_gone(tmp_path):
    machine = Machine()
    before = [*machine.clock.on_step]
    journal = Journal.open(tmp_path / "a.journal", server=SERVER, signer=SIGNER)
    note_clock_steps(journal, machine.clock)
    assert len(machine.clock.on_step) == len(before) + 1
    journal.close()
    del journal
    gc.collect()
    assert machine.clock.on_step == before


def test_a_clock_set_back_by_an_hour_does_not_make_time_stand_still(tmp_path):
    path = tmp_path / "a.journal"
    with open_writer(path) as journal:
        journal.append([observe(b"before", at_us=START_US + HOUR)])
        for minute in range(0, 181, 10):
            journal.append([observe(b"%d" % minute, at_us=START_US + minute * 60 * SECOND)])
        journal.checkpoint()
        times = [hop.at_us for hop in journal.hops()]
    assert times == sorted(times)
    assert max(Counter(times).values()) == 2, "time stands still only where the clock goes back, and where the two meet"
    assert times[-1] == START_US + 3 * HOUR, "the two have met"
    assert verify_journal(path).is_intact
