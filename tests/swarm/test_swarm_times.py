"""The index by time against a sorted list."""

from __future__ import annotations

import random

from dovetail.swarm.times import TimeIndex
from swarm.test_swarm_dag import entry


def test_the_index_agrees_with_a_sorted_list_through_insertions_and_removals():
    chance = random.Random(5)
    index, model = TimeIndex(), []
    for number in range(3000):
        if model and chance.random() < 0.4:
            item = model.pop(chance.randrange(len(model)))
            item.is_live = False
            index.remove(item)
        else:
            item = entry(f"{number}", chance.randrange(5000))
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
