"""Line charts as SVG files, so that figures need no plotting library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from contracts.errors import InvalidArgument

_COLOURS = ("#1f6fb4", "#d1495b", "#2e8b57", "#8d5fb0", "#c98a00", "#3d3d3d")
_WIDTH, _HEIGHT = 720, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 176, 40, 52


@dataclass(frozen=True)
class Series:
    """One line with a mark at each point."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]


def line_chart(title: str, x_label: str, y_label: str, series: Sequence[Series]) -> str:
    """The SVG document. Axes are linear; the y axis holds 0. Raises InvalidArgument without a finite point."""
    points = [(x, y) for line in series for x, y in zip(line.xs, line.ys, strict=True)]
    if not points or not all(math.isfinite(value) for point in points for value in point):
        raise InvalidArgument("series", "needs finite points, at least one")
    x_ticks = _ticks(min(x for x, _ in points), max(x for x, _ in points))
    y_ticks = _ticks(min(0.0, min(y for _, y in points)), max(y for _, y in points))
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def at_x(value: float) -> float:
        return _LEFT + (value - x_ticks[0]) / (x_ticks[-1] - x_ticks[0]) * (right - _LEFT)

    def at_y(value: float) -> float:
        return bottom - (value - y_ticks[0]) / (y_ticks[-1] - y_ticks[0]) * (bottom - _TOP)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_LEFT, 22, title, size=15),
        _text((_LEFT + right) / 2, _HEIGHT - 12, x_label, anchor="middle"),
        f'<g transform="rotate(-90 16 {(_TOP + bottom) / 2})">'
        f"{_text(16, (_TOP + bottom) / 2, y_label, anchor='middle')}</g>",
    ]
    for value in y_ticks:
        y = at_y(value)
        out.append(f'<line x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
        out.append(_text(_LEFT - 8, y + 4, f"{value:g}", anchor="end"))
    for value in x_ticks:
        x = at_x(value)
        out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 5}" stroke="#888888"/>')
        out.append(_text(x, bottom + 20, f"{value:g}", anchor="middle"))
    for index, line in enumerate(series):
        colour = _COLOURS[index % len(_COLOURS)]
        where = [(at_x(x), at_y(y)) for x, y in zip(line.xs, line.ys, strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in where)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out.extend(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in where)
        y = _TOP + 8 + 18 * index
        out.append(f'<line x1="{right + 12}" x2="{right + 30}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>')
        out.append(_text(right + 36, y + 4, line.name))
    return "\n".join([*out, "</svg>\n"])


def write_line_chart(path: Path, title: str, x_label: str, y_label: str, series: Sequence[Series]) -> None:
    """`line_chart` to a file; its folder is made."""
    chart = line_chart(title, x_label, y_label, series)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(chart, encoding="utf-8")


def _ticks(low: float, high: float) -> list[float]:
    """About six round values that enclose [low, high]."""
    span = high - low or abs(high) or 1.0
    raw = span / 5
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(magnitude * factor for factor in (1, 2, 5, 10) if magnitude * factor >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, max(last, first + 1) + 1)]


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
