"""Bar charts as SVG, without any library: they are shown offline and differ only where figures do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, ROW, LEFT, RIGHT, TOP = 720, 16, 70, 60, 54
COLOURS = ("#1b6ca8", "#8a8f98", "#c28f2c", "#5d8f5a")


def bars(title: str, groups: Sequence[str], series: Mapping[str, Sequence[float | None]]) -> str:
    """Horizontal bars: a group of them for each name in `groups`, one of each series; None leaves a gap."""
    largest = max((value for values in series.values() for value in values if value is not None), default=1.0)
    scale = (WIDTH - LEFT - RIGHT) / (largest or 1.0)
    step = ROW * len(series) + 14
    height = TOP + step * len(groups) + 8
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    font = 'font-family="sans-serif" font-size="12"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font} role="img" aria-label="{escape(title)}">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="8" y="18" font-size="14" fill="#222222">{escape(title)}</text>',
    ]
    at = LEFT
    for number, name in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<rect x="{at}" y="28" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{at + 14}" y="37" fill="#222222">{escape(name)}</text>')
        at += 30 + 7 * len(name)
    for place, group in enumerate(groups):
        top = TOP + place * step
        middle = top + ROW * len(series) / 2 + 4
        parts.append(f'<text x="8" y="{middle:g}" fill="#222222">{escape(group)}</text>')
        for number, values in enumerate(series.values()):
            value = values[place]
            if value is None:
                continue
            y, width = top + number * ROW, max(1.0, value * scale)
            colour = COLOURS[number % len(COLOURS)]
            parts.append(f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{ROW - 3}" fill="{colour}"/>')
            parts.append(f'<text x="{LEFT + width + 5:.1f}" y="{y + 11}" fill="#222222">{value:g}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
