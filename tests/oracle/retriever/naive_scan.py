"""The retrieval oracle: plain loops over the documents, no index. Slow and obvious on purpose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

Path = tuple[int, ...]


@dataclass(frozen=True)
class NaiveAnswer:
    """match_length, match_count, and the emitted (full prefix, count) pairs in their order."""

    match_length: int
    match_count: int
    nodes: tuple[tuple[Path, int], ...]
    truncated: bool


def continuations(documents: Sequence[Sequence[int]], suffix: Path, most: int) -> list[Path]:
    """What follows each occurrence of the suffix inside its document, cut to `most` tokens; nothing is left out."""
    found = []
    for document in documents:
        for start in range(len(document) - len(suffix)):
            end = start + len(suffix)
            if tuple(document[start:end]) == suffix:
                found.append(tuple(document[end : end + most]))
    return found


def prefix_counts(found: Sequence[Path]) -> Counter[Path]:
    """How many continuations start with each non-empty prefix."""
    return Counter(path[:depth] for path in found for depth in range(1, len(path) + 1))


def naive_retrieve(
    documents: Sequence[Sequence[int]],
    context: Sequence[int],
    *,
    max_suffix: int,
    min_suffix: int,
    max_continuation: int,
    node_budget: int,
) -> NaiveAnswer:
    """The answer the index must give."""
    for length in range(min(max_suffix, len(context)), min_suffix - 1, -1):
        found = continuations(documents, tuple(context[-length:]), max_continuation)
        if found:
            nodes, truncated = best_first(prefix_counts(found), node_budget)
            return NaiveAnswer(length, len(found), nodes, truncated)
    return NaiveAnswer(0, 0, (), False)


def best_first(counts: Counter[Path], budget: int) -> tuple[tuple[tuple[Path, int], ...], bool]:
    """Emit nodes by (count down, token up, depth up, parent's row up) among those whose parent is out."""
    rows: dict[Path, int] = {(): -1}
    emitted: list[tuple[Path, int]] = []
    while len(emitted) < budget:
        waiting = [path for path in counts if path not in rows and path[:-1] in rows]
        if not waiting:
            break
        best = min(waiting, key=lambda path: (-counts[path], path[-1], len(path), rows[path[:-1]]))
        rows[best] = len(emitted)
        emitted.append((best, counts[best]))
    return tuple(emitted), len(emitted) < len(counts)
