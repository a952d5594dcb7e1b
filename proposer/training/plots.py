"""Plots of a run as SVG, and its figures as CSV: nothing beyond the standard library."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from proposer.training.loop import Figures

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _MARGIN = 640, 360, 56, 40, 16
_COLOURS = ("#1b6ca8", "#d1495b", "#2e933c", "#8e5ea2", "#e09f3e", "#444444")


def write_csv(figures: Sequence[Figures], path: Path) -> None:
    """One row a report: step, tokens, seconds, loss, accuracy and held-out accuracy per depth."""
    depths = max((len(one.accuracy) for one in figures), default=0)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["step", "tokens", "seconds", "loss"]
            + [f"accuracy_{d + 1}" for d in range(depths)]
            + [f"held_out_{d + 1}" for d in range(depths)]
        )
        for one in figures:
            padded = [*one.accuracy, *[""] * (depths - len(one.accuracy))]
            held = [*one.held_out, *[""] * (depths - len(one.held_out))]
            writer.writerow([one.step, one.tokens, f"{one.seconds:.1f}", f"{one.loss:.5f}", *padded, *held])


def write_plots(figures: Sequence[Figures], directory: Path, title: str) -> None:
    """`loss.svg` and `accuracy.svg` (per depth, over answer tokens seen; dots: held out)."""
    tokens = [float(one.tokens) for one in figures]
    loss = {"loss": list(zip(tokens, (one.loss for one in figures), strict=True))}
    (directory / "loss.svg").write_text(line_plot(loss, f"{title}: loss", "answer tokens"), encoding="utf-8")
    curves: dict[str, list[tuple[float, float]]] = {}
    dots: dict[str, list[tuple[float, float]]] = {}
    for x, one in zip(tokens, figures, strict=True):
        for depth, value in enumerate(one.accuracy):
            curves.setdefault(f"depth {depth + 1}", []).append((x, value))
        for depth, value in enumerate(one.held_out):
            dots.setdefault(f"depth {depth + 1}", []).append((x, value))
    text = line_plot(curves, f"{title}: accuracy of the first choice", "answer tokens", dots)
    (directory / "accuracy.svg").write_text(text, encoding="utf-8")


def line_plot(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    title: str,
    x_label: str,
    dots: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> str:
    """An SVG document. Axes span all points, y from 0 or the least value below it."""
    points = [point for group in (curves, dots or {}) for line in group.values() for point in line]
    x_max = max((x for x, _ in points), default=1.0) or 1.0
    y_min = min(0.0, min((y for _, y in points), default=0.0))
    y_max = max((y for _, y in points), default=1.0)
    y_max = y_max if y_max > y_min else y_min + 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + x / x_max * (_WIDTH - _LEFT - _MARGIN)
        up = (y - y_min) / (y_max - y_min) * (_HEIGHT - _BOTTOM - 2 * _MARGIN)
        return round(across, 1), round(_HEIGHT - _BOTTOM - up, 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="{_MARGIN}" font-size="13">{_escape(title)}</text>',
        f'<text x="{_WIDTH // 2}" y="{_HEIGHT - 6}">{_escape(x_label)}</text>',
    ]
    for tick in range(5):
        value = y_min + (y_max - y_min) * tick / 4
        x, y = place(0.0, value)
        parts.append(f'<line x1="{x}" x2="{_WIDTH - _MARGIN}" y1="{y}" y2="{y}" stroke="#dddddd"/>')
        parts.append(f'<text x="4" y="{y + 4}">{value:.3g}</text>')
        across = place(x_max * tick / 4, y_min)[0]
        parts.append(f'<text x="{across - 8}" y="{_HEIGHT - _BOTTOM + 14}">{x_max * tick / 4:.3g}</text>')
    for index, (name, line) in enumerate(curves.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        path = " ".join(f"{x},{y}" for x, y in (place(*point) for point in line))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(f'<text x="{_WIDTH - 90}" y="{2 * _MARGIN + 14 * index}" fill="{colour}">{_escape(name)}</text>')
        for point in (dots or {}).get(name, ()):
            x, y = place(*point)
            parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>')
    return "\n".join([*parts, "</svg>", ""])


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
