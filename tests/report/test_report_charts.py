from __future__ import annotations

import json

import msgspec
import pytest

from dovetail.audit.tables import Tables
from dovetail.report.charts import make_charts
from dovetail.report.numbers import Numbers
from dovetail.report.survey import take_numbers


def test_every_chart_has_the_same_numbers_as_a_table(numbers: Numbers) -> None:
    charts = make_charts(numbers)
    assert set(charts) == {
        *("time-pcp", "time-won", "time-swarm", "types", "reasons", "latency"),
        *("legs", "chains", "coverage-0", "traffic", "stages"),
    }
    for chart in charts.values():
        assert chart.rows, chart.id
        assert all(len(row) == len(chart.columns) for row in chart.rows), chart.id
    for fabric in ("pcp", "won", "swarm"):
        chart = charts[f"time-{fabric}"]
        drawn = sum(value["n"] for value in chart.spec["data"]["values"])
        assert drawn == sum(numbers.outcomes_of(fabric).values())
        assert drawn == sum(int(str(row[2])) for row in chart.rows)


def test_stacked_parts_touch_and_do_not_overlap(numbers: Numbers) -> None:
    by_slot: dict[int, int] = {}
    for value in make_charts(numbers)["time-pcp"].spec["data"]["values"]:
        assert value["low"] == by_slot.get(value["at"], 0)
        assert value["high"] == value["low"] + value["n"]
        by_slot[value["at"]] = value["high"]


def test_an_empty_audit_has_no_charts(empty_tables: Tables) -> None:
    assert make_charts(take_numbers(empty_tables)) == {}


@pytest.mark.exhaustive
def test_the_library_understands_every_specification(numbers: Numbers) -> None:
    vl_convert = pytest.importorskip("vl_convert", reason="the charts' library is not installed")
    for chart in make_charts(numbers).values():
        drawn = vl_convert.vegalite_to_svg({**chart.spec, "width": 400})
        assert drawn.startswith("<svg"), chart.id


def test_names_of_peers_in_charts_are_visible_and_short(hostile_tables: Tables) -> None:
    numbers = take_numbers(hostile_tables)
    for chart in make_charts(numbers).values():
        assert "\u202e" not in json.dumps(chart.spec, ensure_ascii=False), chart.id
        assert "x" * 400 not in json.dumps(chart.spec), chart.id


def test_delivery_times_add_up_to_everything_that_was_measured(numbers: Numbers) -> None:
    latency = [item for item in numbers.latency if item.fabric == "pcp" and item.up_to_ms in (1, 8)]
    chart = make_charts(msgspec.structs.replace(numbers, latency=latency))["latency"]
    (first, last) = chart.spec["data"]["values"]
    counts = [item.deliveries for item in latency]
    assert (first["ms"], first["share"]) == (1, counts[0] / sum(counts))
    assert (last["ms"], last["share"]) == (8, 1)


def test_deliveries_without_a_time_are_said_and_not_drawn_as_nothing(numbers: Numbers) -> None:
    chart = make_charts(msgspec.structs.replace(numbers, without_latency={"pcp": 1234}))["latency"]
    assert "; not measured: pcp 1,234" in chart.caption
    assert "not measured" not in make_charts(msgspec.structs.replace(numbers, without_latency={}))["latency"].caption


def test_charts_over_time_share_one_width(numbers: Numbers) -> None:
    captions = [chart.caption for chart in make_charts(numbers).values() if " per " in chart.caption]
    assert len(captions) > 2
    assert len({caption.rpartition(" per ")[2] for caption in captions}) == 1
