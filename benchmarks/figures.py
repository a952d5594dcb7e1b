"""Figures that benchmarks print: ratios of totals with bootstrap intervals, percentiles, flat JSON, a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table


def ratio_of_totals(
    numerators: Sequence[tuple[float, float]], denominators: Sequence[tuple[float, float]], *, seed: int = 0
) -> tuple[float, float, float]:
    """(total a / total b of the first) over the same of the second, with a 95% bootstrap interval over paired prompts.

    Each entry is (tokens, seconds) of one prompt, so the ratio is a speed-up: tokens per second over tokens per second.
    """
    first, second = np.array(numerators, dtype=np.float64), np.array(denominators, dtype=np.float64)

    def speedup(rows: np.ndarray) -> float:
        a, b = first[rows].sum(axis=0), second[rows].sum(axis=0)
        return float((a[0] / a[1]) / (b[0] / b[1]))

    generator = np.random.default_rng(seed)
    count = len(first)
    samples = [speedup(generator.integers(0, count, count)) for _ in range(2000)]
    low, high = np.percentile(samples, [2.5, 97.5])
    return speedup(np.arange(count)), float(low), float(high)


def write(figures: Mapping[str, float | int | str | bool], path: Path | None, console: Console, title: str) -> None:
    """Prints the figures as a table and writes them as one flat JSON object."""
    table = Table("figure", "value", title=title)
    for name, value in figures.items():
        table.add_row(name, f"{value:.4g}" if isinstance(value, float) else str(value))
    console.print(table)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dict(figures), indent=2) + "\n")
