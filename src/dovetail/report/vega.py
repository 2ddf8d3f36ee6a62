"""Chart types as Vega-Lite specifications, built from plain rows.

Vega and Vega-Lite come from the package vl-convert-python, which contains their scripts, so the page fetches nothing.
Heights are set here; widths, legends and the colours of text and lines are set by the page.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import Any

from dovetail.model.errors import PipelineError
from dovetail.model.times import MINUTE_US

Spec = dict[str, Any]
Colours = dict[str, str]

_PLOT_HEIGHT = 160
_LABELS: Spec = {"labelLimit": 190}
_DURATION = "datum.value < 1000 ? datum.value + ' ms' : format(datum.value / 1000, '.3~r') + ' s'"


@cache
def bundle_script() -> str:
    """The scripts of Vega, Vega-Lite and Vega-Embed as one text; bundling them takes about a second."""
    try:
        import vl_convert
    except ImportError:
        raise PipelineError("the charts need the package vl-convert-python: pip install vl-convert-python") from None
    # the package's stub does not allow None for the snippet
    return str(vl_convert.javascript_bundle(snippet=None))  # type: ignore[arg-type]


def stack_over_time(
    slots: Sequence[tuple[int, str, int]], width_us: int, colours: Colours, *, part: str, count: str, time: str
) -> Spec:
    """Time slots as columns, each stacked from its parts in the order of `colours`."""
    order = {name: number for number, name in enumerate(colours)}
    heights: dict[int, int] = defaultdict(int)
    values = []
    for at_us, name, number in sorted(slots, key=lambda slot: (slot[0], order.get(slot[1], len(order)))):
        low, heights[at_us] = heights[at_us], heights[at_us] + number
        start, end = at_us // 1000, (at_us + width_us) // 1000
        values.append({"at": start, "end": end, "part": name, "n": number, "low": low, "high": heights[at_us]})
    return {
        "data": {"values": values},
        "height": _PLOT_HEIGHT,
        "mark": {"type": "rect"},
        "encoding": {
            "x": _time("at", time, [at_us for at_us, _, _ in slots]),
            "x2": {"field": "end"},
            "y": _quantity("low", count, max(heights.values(), default=0)),
            "y2": {"field": "high"},
            "color": _colour("part", colours),
            "tooltip": [_time_tip("at", time), {"field": "part", "title": part}, _count_tip("n", count)],
        },
    }


def stack_shares(
    rows: Sequence[tuple[str, str, int]], order: Sequence[str], colours: Colours, *, part: str, count: str
) -> Spec:
    """Bars of equal length, each divided into the shares of its parts."""
    rank = {name: number for number, name in enumerate(colours)}
    values = [{"name": name, "part": each, "n": number, "rank": rank.get(each, 0)} for name, each, number in rows]
    return {
        "data": {"values": values},
        "height": 28 * len(order),
        "mark": {"type": "bar"},
        "encoding": {
            "y": {"field": "name", "type": "nominal", "sort": list(order), "title": None, "axis": _LABELS},
            "x": {**_share("n", f"share of {count}"), "stack": "normalize"},
            "color": _colour("part", colours),
            "order": {"field": "rank"},
            "tooltip": [{"field": "name"}, {"field": "part", "title": part}, _count_tip("n", count)],
        },
    }


def rank_bars(rows: Sequence[tuple[str, str, int, str]], colours: Colours, *, count: str) -> Spec:
    """Bars by length: name, what determines the colour, count, and meaning."""
    names = list(dict.fromkeys(name for name, *_ in rows))
    return {
        "data": {"values": [{"name": name, "part": part, "n": number, "why": why} for name, part, number, why in rows]},
        "height": 24 * len(names),
        "mark": {"type": "bar", "cornerRadiusEnd": 2},
        "encoding": {
            "y": {"field": "name", "type": "nominal", "sort": "-x", "title": None, "axis": _LABELS},
            "x": _quantity("n", count, max((number for _, _, number, _ in rows), default=0)),
            "color": _colour("part", colours),
            "tooltip": [{"field": "name"}, {"field": "why", "title": "meaning"}, _count_tip("n", count)],
        },
    }


def draw_cumulative(buckets: Sequence[tuple[str, int, int, str]], colours: Colours, *, count: str) -> Spec:
    """One step line per part: the share that took at most this long; part, upper end in ms, count, and the end as text.

    The horizontal lines are at 50, 90 and 99 %.
    """
    totals: dict[str, int] = defaultdict(int)
    for part, _, number, _ in buckets:
        totals[part] += number
    values: list[Spec] = []
    running: dict[str, int] = defaultdict(int)
    for part, up_to, number, took in sorted(buckets, key=lambda bucket: bucket[:2]):
        running[part] += number
        share = running[part] / max(totals[part], 1)
        values.append({"part": part, "ms": up_to, "n": number, "share": share, "took": took})
    scale = {"type": "log", "base": 2, "nice": False}
    ends = sorted({up_to for _, up_to, _, _ in buckets})
    axis = {"grid": False, "labelExpr": _DURATION, "values": ends, "labelOverlap": True}
    share_axis = {"format": "%", "values": [0, 0.5, 0.9, 0.99], "labelOverlap": "greedy"}
    return {
        "data": {"values": values},
        "height": _PLOT_HEIGHT,
        "mark": {"type": "line", "point": {"size": 42, "filled": True}, "interpolate": "step-after", "strokeWidth": 2},
        "encoding": {
            "x": {"field": "ms", "type": "quantitative", "scale": scale, "title": "took at most", "axis": axis},
            "y": {**_share("share", f"share of {count}"), "scale": {"domain": [0, 1]}, "axis": share_axis},
            "color": _colour("part", colours),
            "tooltip": [
                {"field": "part"},
                {"field": "took", "title": "within"},
                {"field": "share", "format": ".1%"},
                _count_tip("n", f"{count} in this step"),
            ],
        },
    }


def draw_ranges(rows: Sequence[tuple[str, str, Sequence[float]]], colours: Colours) -> Spec:
    """A dot at the median, a thick line to 90 % and a thin one to 99 %, in milliseconds on a logarithmic scale."""
    values = [{"name": name, "part": part, "p50": p50, "p90": p90, "p99": p99} for name, part, (p50, p90, p99) in rows]
    axis = {"labelExpr": _DURATION, "values": [10**power for power in range(-3, 8)], "labelOverlap": True}
    scale: Spec = {"type": "log"}
    x = {"field": "p50", "type": "quantitative", "scale": scale, "title": None, "axis": axis}
    tips = [{"field": "name"}, *({"field": q, "title": f"{q}, ms", "format": ",.4~r"} for q in ("p50", "p90", "p99"))]
    return {
        "data": {"values": values},
        "height": 28 * len(rows),
        "encoding": {
            "y": {"field": "name", "type": "nominal", "sort": None, "title": None, "axis": _LABELS},
            "color": _colour("part", colours),
            "tooltip": tips,
        },
        "layer": [
            {"mark": {"type": "rule", "strokeWidth": 1.5}, "encoding": {"x": x, "x2": {"field": "p99"}}},
            {"mark": {"type": "rule", "strokeWidth": 5, "opacity": 0.5}, "encoding": {"x": x, "x2": {"field": "p90"}}},
            {"mark": {"type": "point", "filled": True, "size": 80, "opacity": 1}, "encoding": {"x": x}},
        ],
    }


def draw_band(points: Sequence[tuple[int, float, float, int]], colour: str, *, share: str, time: str) -> Spec:
    """A line of means with a band down to the worst: time, mean, worst and count."""
    values = [{"at": at_us // 1000, "mean": mean, "worst": worst, "n": number} for at_us, mean, worst, number in points]
    y = {"type": "quantitative", "scale": {"domain": [0, 1]}, "title": share, "axis": {"format": "%", "tickCount": 4}}
    tips = [
        _time_tip("at", time),
        {"field": "mean", "format": ".1%"},
        {"field": "worst", "format": ".1%"},
        _count_tip("n", "messages"),
    ]
    line = {"type": "line", "color": colour, "strokeWidth": 2, "point": {"color": colour, "size": 30}}
    return {
        "data": {"values": values},
        "height": _PLOT_HEIGHT,
        "encoding": {"x": _time("at", time, [at_us for at_us, *_ in points]), "tooltip": tips},
        "layer": [
            {
                "mark": {"type": "area", "opacity": 0.22, "color": colour},
                "encoding": {"y": {"field": "worst", **y}, "y2": {"field": "mean"}},
            },
            {"mark": line, "encoding": {"y": {"field": "mean", **y}}},
        ],
    }


def _time(field: str, title: str, times_us: Sequence[int]) -> Spec:
    span = max(times_us, default=0) - min(times_us, default=0)
    form = "%H:%M:%S" if span < 4 * MINUTE_US else "%H:%M" if span < 36 * 60 * MINUTE_US else "%d %b %H:%M"
    axis = {"grid": False, "tickCount": 4, "labelOverlap": "greedy", "labelSeparation": 12, "format": form}
    return {"field": field, "type": "temporal", "scale": {"type": "utc"}, "title": title, "axis": axis}


def _quantity(field: str, title: str, most: int) -> Spec:
    # never more ticks than integers
    axis = {"labelExpr": "format(datum.value, '~s')", "tickCount": max(min(4, most), 1)}
    return {"field": field, "type": "quantitative", "title": title, "axis": axis}


def _share(field: str, title: str) -> Spec:
    return {"field": field, "type": "quantitative", "title": title, "axis": {"format": "%", "tickCount": 4}}


def _colour(field: str, colours: Colours) -> Spec:
    scale = {"domain": list(colours), "range": list(colours.values())}
    return {"field": field, "type": "nominal", "title": None, "scale": scale, "legend": None}


def _time_tip(field: str, title: str) -> Spec:
    return {"field": field, "type": "temporal", "title": title, "timeUnit": "utcyearmonthdatehoursminutesseconds"}


def _count_tip(field: str, title: str) -> Spec:
    return {"field": field, "type": "quantitative", "title": title, "format": ","}
