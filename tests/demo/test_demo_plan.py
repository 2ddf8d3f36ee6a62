from dovetail.demo.plan import LOSS_TIMEOUT_S, Plan


def test_more_scale_is_more_traffic_in_the_same_time():
    usual, large = Plan.of(1), Plan.of(3)
    assert large.seconds == usual.seconds
    assert large.requests_per_second == 3 * usual.requests_per_second
    assert usual.seconds * usual.requests_per_second > 1_000


def test_a_small_demo_is_short_and_still_long_enough_to_lose_something():
    small = Plan.of(0.1)
    assert small.seconds < 15
    assert 0.35 * small.seconds > LOSS_TIMEOUT_S, "what is lost at 0.65 must be overdue at the end"
    assert min(small.agents, small.peers, small.owners_per_node) >= 2
