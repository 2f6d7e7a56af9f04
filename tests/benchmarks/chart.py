"""Charts as SVG, without a library: horizontal bars, and lines over a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH = 760
LEFT, RIGHT, TOP, BOTTOM = 150, 110, 52, 34
ROW = 24
OURS, OTHERS = "#0b6e4f", "#9aa5b1"
COLOURS = (OURS, "#d1495b", "#2e4057", "#edae49")
STYLE = "font-family:system-ui,sans-serif;font-size:12px"

#: Value -> length in pixels.
Axis = Callable[[float], float]


class Bar(NamedTuple):
    """One bar of a chart."""

    label: str
    value: float
    ours: bool = False


def bars(title: str, description: str, rows: Sequence[Bar], unit: str, *, log: bool = False) -> str:
    """Horizontal bars; a logarithmic axis begins at the power of ten below the smallest value."""
    height = TOP + ROW * len(rows) + BOTTOM
    place = (
        _log_axis([row.value for row in rows]) if log else _linear_axis([row.value for row in rows])
    )
    parts = [_text(LEFT, 40, unit + (", logarithmic" if log else ""), "#52606d")]
    for number, row in enumerate(rows):
        y, width = TOP + ROW * number, max(1.0, place(row.value))
        fill = OURS if row.ours else OTHERS
        parts += [
            _text(LEFT - 8, y + 14, row.label, "#1f2933", "end", bold=row.ours),
            f'<rect x="{LEFT}" y="{y + 2}" width="{width:.1f}" height="{ROW - 7}" rx="2" '
            f'fill="{fill}"/>',
            _text(LEFT + width + 6, y + 14, human(row.value), "#1f2933", bold=row.ours),
        ]
    return _svg(title, description, height, parts)


def lines(
    title: str, description: str, series: Mapping[str, Sequence[tuple[float, float]]], unit: str
) -> str:
    """Values over powers of ten, each line in a colour of its own; the vertical axis begins at
    zero."""
    height, bottom = 320, 320 - BOTTOM - 14
    xs = sorted({x for points in series.values() for x, _ in points})
    top_value = max((y for points in series.values() for _, y in points), default=1.0) * 1.15 or 1.0
    low, high = math.log10(max(1.0, xs[0])), math.log10(max(10.0, xs[-1]))

    def place(x: float, y: float) -> tuple[float, float]:
        share = (math.log10(max(1.0, x)) - low) / ((high - low) or 1.0)
        return 60 + share * (WIDTH - 60 - 170), bottom - y / top_value * (bottom - TOP)

    parts = [_text(60, 40, unit, "#52606d"), _line(60, bottom, WIDTH - 170, bottom)]
    parts += [_text(place(x, 0)[0], bottom + 18, f"{x:,.0f}", "#52606d", "middle") for x in xs]
    for number, (name, points) in enumerate(series.items()):
        colour, placed = COLOURS[number % len(COLOURS)], [place(x, y) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for (x, y), (_, value) in zip(placed, points, strict=True):
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
            parts.append(_text(x, y - 8, human(value), colour, "middle"))
        parts.append(_text(WIDTH - 158, TOP + 18 * number, name, colour, bold=True))
    return _svg(title, description, height, parts)


def human(value: float) -> str:
    """Three digits that count, thousands apart."""
    if abs(value) >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"


def _linear_axis(values: Sequence[float]) -> Axis:
    longest = max(values, default=1.0) or 1.0
    return lambda value: max(0.0, value) / longest * (WIDTH - LEFT - RIGHT)


def _log_axis(values: Sequence[float]) -> Axis:
    positive = [value for value in values if value > 0] or [1.0]
    low = math.floor(math.log10(min(positive) / 2))  # the shortest bar is to be seen
    span = max(0.5, math.log10(max(positive)) - low)
    return lambda value: (
        (math.log10(value) - low) / span * (WIDTH - LEFT - RIGHT) if value > 0 else 0.0
    )


def _text(
    x: float, y: float, text: str, colour: str, anchor: str = "start", *, bold: bool = False
) -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" '
        f'text-anchor="{anchor}"{weight}>{escape(text)}</text>'
    )


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#cbd2d9"/>'


def _svg(title: str, description: str, height: int, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}"'
        f' role="img" aria-labelledby="title desc" style="{STYLE}">'
    )
    back = f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    named = (
        f'<title id="title">{escape(title)}</title>\n<desc id="desc">{escape(description)}</desc>'
    )
    heading = (
        f'<text x="16" y="22" fill="#1f2933" font-size="15" '
        f'font-weight="600">{escape(title)}</text>'
    )
    return "\n".join([head, named, back, heading, *parts, "</svg>", ""])
