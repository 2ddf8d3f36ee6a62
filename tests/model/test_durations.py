"""The histogram counts each duration once, in the first bucket that contains it."""

from dovetail.model.durations import Durations


def test_buckets_are_cumulative_and_a_bound_belongs_to_its_bucket():
    durations = Durations((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        durations.observe(seconds)
    assert durations.cumulative() == [("0.1", 2), ("1.0", 3), ("+Inf", 4)]
    assert durations.sum_s == 7.65
