"""What `make bench-hostile` needs of the page that it writes to, and of the benchmarks that it runs."""

from __future__ import annotations

import pytest
from benchmarks import hostile, pcp_admitted, pcp_hostile, swarm_hostile, won_hostile

ATTACKS = {
    "strangers": pcp_hostile.attacks(10_000),
    "swarm": swarm_hostile.ATTACKS,
    "won": won_hostile.ATTACKS,
    "admitted": pcp_admitted.ATTACKS,
}


@pytest.mark.parametrize("name", hostile.PARTS)
def test_the_page_has_a_place_for_each_table(name):
    page = hostile.PAGE.read_text()
    (line,) = set(hostile.replace(page, name, ["a new table"]).splitlines()) - set(page.splitlines())
    assert line == "a new table"


@pytest.mark.parametrize("name", hostile.PARTS)
def test_earlier_figures_belong_to_attacks_that_are_measured(name):
    part = hostile.PARTS[name]
    assert set(part.earlier) <= set(ATTACKS[name])
    assert all(len(figures) == len(part.earlier_columns) for figures in part.earlier.values())


def test_a_table_joins_the_rows_of_two_runs_by_their_attack():
    part = hostile.Part(("a", "a --amid"), {"one": "x", "two": ".x"}, ("earlier",), {"rain": ("9",)})
    table = hostile.tabulate(
        part,
        [
            [{"attack": "sun", "x": 1.234}, {"attack": "rain", "x": 12_345}],
            [{"attack": "rain", "x": 3.0}, {"attack": "sun", "x": 4.0}],
        ],
    )
    assert table == [
        "| attack | one | two | earlier |",
        "| --- | --- | --- | --- |",
        "| sun | 1.2 | 4 |  |",
        "| rain | 12,345 | 3 | 9 |",
    ]
