"""The page's colours: text is readable, dark and light."""

from __future__ import annotations

import re

import pytest

from dovetail.report.charts import FABRIC_COLOURS, OUTCOME_COLOURS, STATE_COLOURS
from dovetail.report.page import read_static

WORDS = [
    *((ink, back) for ink in ("ink", "ink-2", "ink-3", "accent") for back in ("paper", "card")),
    *((name, f"{name}-soft") for name in ("good", "unsure", "bad", "note")),
    *((name, "paper") for name in ("good", "unsure", "bad")),
]
"""Colour of text and of its background."""


def palettes() -> dict[str, dict[str, str]]:
    """The variables of both themes: the first block is light, the last dark one is chosen by the switch."""
    blocks = re.findall(r":root[^{]*\{([^}]*)\}", read_static("report.css"))
    read = [dict(re.findall(r"--([a-z0-9-]+):\s*(#[0-9a-f]{6});", block)) for block in blocks]
    light, by_system, by_switch = read[:3]
    assert by_system == by_switch
    return {"light": light, "dark": {**light, **by_switch}}


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """WCAG 2.2, contrast ratio."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_can_be_read(theme: str) -> None:
    palette = palettes()[theme]
    weak = {pair: round(contrast(palette[pair[0]], palette[pair[1]]), 2) for pair in WORDS}
    assert {pair: ratio for pair, ratio in weak.items() if ratio < 4.5} == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_marks_of_charts_stand_out_from_the_card(theme: str) -> None:
    card = palettes()[theme]["card"]
    colours = {**OUTCOME_COLOURS, **STATE_COLOURS, **FABRIC_COLOURS}
    assert {
        name: round(contrast(colour, card), 2) for name, colour in colours.items() if contrast(colour, card) < 3
    } == {}
