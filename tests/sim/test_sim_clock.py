"""A process's own clock."""

import pytest

from dovetail.sim.clock import Clock


def test_skew_is_added():
    assert Clock(0, skew_us=-5).read(100) == 95
    assert Clock(0, skew_us=-5).when(95) == 100


def test_fast_clock_gains_its_parts_in_a_million():
    clock = Clock(1_000_000, drift_ppm=200)
    assert clock.read(1_000_000) == 1_000_000
    assert clock.read(11_000_000) == 11_002_000


@pytest.mark.parametrize("drift_ppm", [-500_000, -999, -1, 0, 1, 37, 500_000])
@pytest.mark.parametrize("shown_us", [0, 999_999, 1_000_000, 1_000_001, 123_456_789])
def test_when_is_the_first_moment_at_which_the_clock_shows_so_much(drift_ppm, shown_us):
    clock = Clock(1_000_000, skew_us=17, drift_ppm=drift_ppm)
    world_us = clock.when(shown_us)
    assert clock.read(world_us) >= shown_us > clock.read(world_us - 1)


def test_clock_that_stands_still_is_refused():
    with pytest.raises(ValueError, match="-1000000 ppm"):
        Clock(0, drift_ppm=-1_000_000)
