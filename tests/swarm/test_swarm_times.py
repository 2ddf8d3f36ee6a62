"""The index by time against a sorted list."""

from __future__ import annotations

import random

import pytest

from dovetail.swarm.times import TimeIndex
from swarm.test_swarm_dag import entry


def test_the_index_agrees_with_a_sorted_list_through_insertions_and_removals():
    chance = random.Random(5)
    index, model, gone = TimeIndex(), [], []
    for number in range(3000):
        if model and chance.random() < 0.4:
            item = model.pop(chance.randrange(len(model)))
            item.is_live = False
            index.remove(item)
            gone.append(item)
        else:
            back = gone.pop(chance.randrange(len(gone))) if gone and chance.random() < 0.2 else None
            item = entry(back.raw.decode(), back.timestamp_ms) if back else entry(f"{number}", chance.randrange(5000))
            model.append(item)
            index.add(item)
        if number % 100 == 0:
            start = chance.randrange(5000)
            end = start + chance.randrange(3000)
            expected = sorted((one.timestamp_ms, one.address) for one in model if start <= one.timestamp_ms <= end)
            assert [(one.timestamp_ms, one.address) for one in index.between(start, end)] == expected
            before = sorted(
                [(one.timestamp_ms, one.address) for one in model if one.timestamp_ms < start], reverse=True
            )
            assert [(one.timestamp_ms, one.address) for one in index.before(start)] == before


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("others", [0, 20])
def test_an_item_that_was_removed_may_come_again(is_read, others):
    """A message that expired by a clock that was wrong comes again when the clock is set back."""
    index = TimeIndex()
    kept = [entry(f"a{number:02}", 5) for number in range(others + 1)]
    gone, again = entry("x", 5), entry("x", 5)
    for item in (*kept, gone):
        index.add(item)
    if is_read:
        assert list(index.between(5, 5)) == [*kept, gone]
    gone.is_live = False
    index.remove(gone)
    index.add(again)
    assert list(index.between(5, 5)) == [*kept, again]
    again.is_live = False
    index.remove(again)
    assert list(index.before(6)) == kept[::-1]
