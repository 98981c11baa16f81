"""Charts as SVG texts: lines over time with bands where something happened. No library, and no display."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 960, 260
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 28, 34
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f")
TICKS = 5


@dataclass(frozen=True, slots=True)
class Line:
    """A name and (x, y) in the order of x."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Band:
    """Something that lasted from one x to another."""

    name: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    lines: Sequence[Line]
    bands: Sequence[Band] = ()


def nice_step(span: float) -> float:
    """Return the distance between ticks: 1, 2 or 5 times a power of ten, so that about TICKS of them fit into
    `span`.
    """
    if span <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(span / TICKS))
    return next(power * each for each in (1, 2, 5, 10) if power * each * TICKS >= span)


def draw(charts: Sequence[Chart], x_max: float) -> str:
    """Return one picture of all charts, one below the other; x begins at 0 (seconds since the begin)."""
    height = HEIGHT * len(charts)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
    )
    body = [_chart(chart, HEIGHT * number, x_max) for number, chart in enumerate(charts)]
    return "\n".join([head, *body, "</svg>\n"])


def _chart(chart: Chart, down: float, x_max: float) -> str:
    y_max = max((y for line in chart.lines for _, y in line.points), default=0.0) or 1.0
    bottom, right = down + HEIGHT - BOTTOM, WIDTH - RIGHT

    def at(x: float, y: float) -> str:
        place_x = LEFT + (right - LEFT) * min(1.0, max(0.0, x / (x_max or 1.0)))
        return f"{place_x:.1f},{bottom - (bottom - down - TOP) * y / y_max:.1f}"

    drawn = [f'<text x="{LEFT}" y="{down + 16}" font-size="13" font-weight="bold">{escape(chart.title)}</text>']
    for band in chart.bands:
        begin, end = (float(at(x, 0.0).partition(",")[0]) for x in (band.begin, band.end))
        drawn.append(
            f'<rect x="{begin:.1f}" y="{down + TOP}" width="{max(1.0, end - begin):.1f}" '
            f'height="{bottom - down - TOP:.1f}" fill="#f4c7c3" fill-opacity="0.7">'
            f"<title>{escape(band.name)}</title></rect>"
        )
    for value in _ticks(y_max):
        x, y = at(0.0, value).split(",")
        drawn.append(f'<line x1="{x}" y1="{y}" x2="{right}" y2="{y}" stroke="#dddddd"/>')
        drawn.append(f'<text x="{LEFT - 6}" y="{float(y) + 4:.1f}" text-anchor="end">{value:g}</text>')
    for value in _ticks(x_max):
        x = at(value, 0.0).partition(",")[0]
        drawn.append(f'<text x="{x}" y="{bottom + 15}" text-anchor="middle">{value:g} s</text>')
    for number, line in enumerate(chart.lines):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(at(x, y) for x, y in line.points)
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.3"/>')
        place = right - 90 * (len(chart.lines) - number)
        drawn.append(f'<text x="{place}" y="{down + 16}" fill="{colour}">{escape(line.name)}</text>')
    return "\n".join(drawn)


def _ticks(most: float) -> list[float]:
    step = nice_step(most)
    return [number * step for number in range(int(most / step) + 1)]
