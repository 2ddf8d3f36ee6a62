import pytest

from dovetail.site.backoff import JITTER, Backoff


def pauses(backoff: Backoff, *runs_s: float) -> list[float]:
    return [backoff.next_pause(ran_s) for ran_s in runs_s]


def test_pauses_double_up_to_the_longest():
    backoff = Backoff(min_s=0.5, max_s=3, well_after_s=60, draw=lambda: 0.0)
    assert pauses(backoff, 0, 0, 0, 0, 0) == [0.5, 1, 2, 3, 3]


def test_a_run_that_was_well_makes_the_next_pause_short_again():
    backoff = Backoff(min_s=0.5, max_s=30, well_after_s=60, draw=lambda: 0.0)
    assert pauses(backoff, 0, 0, 59.9, 60, 0) == [0.5, 1, 2, 0.5, 1]


@pytest.mark.parametrize("drawn", [0.0, 0.5, 0.999])
def test_jitter_only_shortens_and_is_bounded(drawn):
    (pause,) = pauses(Backoff(min_s=8, max_s=8, well_after_s=1, draw=lambda: drawn), 0)
    assert 8 * (1 - JITTER) < pause <= 8
    assert pause == 8 * (1 - JITTER * drawn)


def test_ten_thousand_failures_do_not_overflow():
    backoff = Backoff(min_s=0.5, max_s=30, well_after_s=60, draw=lambda: 0.0)
    assert pauses(backoff, *[0] * 10_000)[-1] == 30
