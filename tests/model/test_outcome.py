"""Which outcomes mean that a message arrived."""

from dovetail.model.outcome import ARRIVED, PENDING, Outcome, count_arrived


def test_what_only_the_senders_side_has_did_not_arrive():
    assert count_arrived({outcome.value: 1 for outcome in Outcome}) == 2
    assert {Outcome.DELIVERED, Outcome.HANDED_OVER} == ARRIVED
    assert Outcome.ECHOED in PENDING
