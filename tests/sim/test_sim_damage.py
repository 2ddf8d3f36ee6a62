"""What a bad disk does to files."""

import pytest

from dovetail.sim.damage import FILE, LOG, MARK, Damage, damage_files
from dovetail.sim.randomness import Randomness

PAGE = 8192
FRAME = 24 + PAGE
FILES = {
    FILE: b"".join(bytes([number]) * PAGE for number in range(1, 5)),
    LOG: b"h" * 32 + b"".join(bytes([number]) * FRAME for number in range(10, 14)),
    MARK: b"m" * 12_288,
}
EARLIER = {FILE: b"o" * (2 * PAGE)}


def damage(kind, seed, files=FILES):
    return damage_files(files, EARLIER, kind, Randomness(seed).stream("damage"))


def changed(kind, seed, files=FILES):
    """By changed file: before and after."""
    after = damage(kind, seed, files)
    return {suffix: (files[suffix], after[suffix]) for suffix in files if after[suffix] != files[suffix]}


@pytest.mark.parametrize("kind", list(Damage))
def test_the_same_chance_does_the_same(kind):
    assert damage(kind, 1) == damage(kind, 1)


def test_a_torn_write_comes_behind_what_is_there():
    for seed in range(20):
        [(before, after)] = changed(Damage.TORN, seed).values()
        assert after.startswith(before)
        assert 0 < len(after) - len(before) <= FRAME


def test_a_lost_write_is_the_end_of_the_log_or_an_old_page():
    for seed in range(20):
        [(before, after)] = changed(Damage.LOST, seed).values()
        assert before.startswith(after)
        [(before, after)] = changed(Damage.LOST, seed, {FILE: FILES[FILE]}).values()
        assert len(after) == len(before)
        assert sum(after.count(byte) for byte in (b"o", b"\0")) == PAGE


def test_one_bit_is_flipped_in_each_of_the_files_by_chance():
    suffixes = set()
    for seed in range(60):
        [(suffix, (before, after))] = changed(Damage.FLIPPED, seed).items()
        assert (int.from_bytes(before) ^ int.from_bytes(after)).bit_count() == 1
        suffixes.add(suffix)
    assert suffixes == {FILE, LOG, MARK}


@pytest.mark.parametrize("kind", [Damage.ZEROED, Damage.MISDIRECTED])
def test_one_page_is_another(kind):
    for seed in range(40):
        for before, after in changed(kind, seed).values():
            differing = [index for index, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]
            assert differing[-1] - differing[0] < FRAME
