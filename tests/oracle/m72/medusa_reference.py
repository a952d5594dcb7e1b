"""Medusa's published path evaluation, written anew in plain loops from M7.2 section 0x04E, padding mistake included.

Works on paths of token and packed-row lists padded with -1, as the published code does; `padding_matches` reproduces its
treatment of padding as the token 0 scored by the last row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def parents_of(choices: Sequence[Sequence[int]]) -> tuple[list[int], list[tuple[int, ...]]]:
    """Packed order (length, lexicographic) without the root: parent per candidate row (-1: root), and rank paths."""
    paths = sorted((tuple(path) for path in choices), key=lambda path: (len(path), path))
    row = {path: i for i, path in enumerate(paths)}
    return [row[path[:-1]] if len(path) > 1 else -1 for path in paths], paths


def softmax(logits: Floats, temperature: float) -> Floats:
    scaled = np.exp((logits - logits.max()) / temperature)
    return np.asarray(scaled / scaled.sum())


def passes(
    rule: str, logits: Floats, token: int, *, temperature: float = 0.7, epsilon: float = 0.09, alpha: float = 0.3
) -> tuple[bool, float]:
    """(whether `token` passes at the row with `logits`, its log-probability)."""
    if rule == "greedy":
        return token == int(np.argmax(logits)), 0.0
    p = softmax(logits, temperature)
    entropy = -float((p * np.log(p + 1e-5)).sum())
    return float(p[token]) > min(epsilon, alpha * math.exp(-entropy)), math.log(float(p[token]) + 1e-300)


def evaluate(
    rule: str, rows: Sequence[Sequence[int]], tokens: Sequence[int], logits: Floats, *, padding_matches: bool
) -> list[int]:
    """The accepted packed rows of the best path, the root included. rows: retrieval rows padded with -1."""
    best: tuple[int, float, list[int]] = (0, 0.0, [0])
    for path in rows:
        accepted, score = [path[0]], 0.0
        for before, here in pairwise(path):
            if here < 0 and not padding_matches:
                break
            ok, log_p = passes(rule, logits[before], 0 if here < 0 else tokens[here])
            if not ok:
                break
            accepted.append(here)
            score += log_p
        if len(accepted) - 1 > best[0] or (len(accepted) - 1 == best[0] > 0 and score > best[1]):
            best = (len(accepted) - 1, score, accepted)
    return best[2]
