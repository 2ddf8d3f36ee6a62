"""Random streams by name."""

import hashlib

from dovetail.sim.randomness import Randomness, draw_between


def test_streams_depend_on_seed_and_name_only():
    first = [Randomness(7).stream("a").random() for _ in range(2)]
    assert first[0] == first[1]
    assert Randomness(7).stream("b").random() != first[0]
    assert Randomness(8).stream("a").random() != first[0]


def test_using_one_stream_does_not_shift_another():
    randomness = Randomness(7)
    alone = randomness.stream("a").random()
    for _ in range(10):
        randomness.stream("b").random()
    assert randomness.stream("a").random() == alone


def test_seed_and_name_cannot_be_taken_for_each_other():
    assert Randomness(1).derive_key("2\0x") != Randomness(12).derive_key("x")


def test_keys_are_fixed_for_ever():
    assert Randomness(1).derive_key("a") == hashlib.sha256(b"dovetail sim\x001\x00a").digest()
    assert Randomness(1).stream("a").random() == 0.39460467801287036


def test_draw_between_reaches_both_ends_and_nothing_else():
    source = Randomness(1).stream("dice")
    assert {draw_between(source, 1, 6) for _ in range(500)} == {1, 2, 3, 4, 5, 6}
