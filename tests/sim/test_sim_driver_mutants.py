"""The worlds find drivers that break their promise, and find no fault in the real one."""

import pytest

from dovetail.runtime.driver import Driver
from dovetail.sim.scenario import Setting, run_scenario
from dovetail.sim.world import SECOND_US

FAULTS = "crash=6,append_crash=4,pause=2,disk,clock"


class SendsBeforeTheCommit(Driver):
    """A mutant."""

    def _turn(self):
        if not self._is_stopped and self._is_full:
            self._feed(self._clock.now())
            if outgoing := self._core.to_send():
                self._transport.send(outgoing, 0)
        super()._turn()


class DoesNotSayThatALinkBroke(Driver):
    """A mutant."""

    def receive_closed(self, link, tell):
        self.call(tell)


def rules_broken(scenario, seeds, driver_class):
    setting = Setting(places=2 if scenario == "won" else 4, duration_us=4 * SECOND_US, durability="full")
    reports = [
        run_scenario(scenario, seed, setting=setting, faults=FAULTS, driver_class=driver_class) for seed in seeds
    ]
    return {finding.rule for report in reports for finding in report.findings}


@pytest.mark.parametrize(
    ("mutant", "scenario", "seeds", "rule"),
    [
        (SendsBeforeTheCommit, "pcp", range(3), "commit_first"),
        (SendsBeforeTheCommit, "won", range(1), "commit_first"),
        (SendsBeforeTheCommit, "swarm", range(2), "commit_first"),
        (DoesNotSayThatALinkBroke, "pcp", range(20), "left"),
    ],
)
def test_drivers_that_break_the_promise_are_found_by_worlds(mutant, scenario, seeds, rule):
    assert rules_broken(scenario, seeds, Driver) == set()
    assert rule in rules_broken(scenario, seeds, mutant)
