"""EAGLE-2's dynamic tree (Li et al., arXiv 2406.16858, section 4): expand by path value, then rerank to a budget.

The value of a node is its path's summed log-probability. Each level, the `top_k` most valuable nodes of the last level get
`top_k` children each; in the end the most valuable nodes of all levels are kept. A child is never worth more than its
parent and always younger, so ranking by (value, age) keeps every parent of a kept node: of equal values the older wins.

What is kept depends on the values drawn, so this is for verifiers without q only (docs/decisions/0004-merging.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from contracts.errors import InvalidArgument
from contracts.topology import ANCHOR


@dataclass(frozen=True)
class RankedTree:
    """tokens, parents (-1: the anchor), depths and path log-probabilities, parents before children, oldest first."""

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    depths: tuple[int, ...] = ()
    scores: tuple[float, ...] = ()


class DynamicTree:
    """Grows one round's tree. Calling order: `add` for the anchor, then for every node of `frontier()`, level by level;
    `rerank` at the end.
    """

    def __init__(self, top_k: int) -> None:
        if top_k < 1:
            raise InvalidArgument("top_k", f"{top_k} is below 1")
        self._top_k = top_k
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._depths: list[int] = []
        self._scores: list[float] = []

    def __len__(self) -> int:
        return len(self._tokens)

    def token(self, node: int) -> int:
        return self._tokens[node]

    def add(self, parent: int, tokens: Sequence[int], log_probs: Sequence[float]) -> range:
        """Appends the children of `parent` (-1: the anchor), best first; returns their numbers.

        Raises InvalidArgument for a log-probability above 0: a child would be worth more than its parent.
        """
        if len(tokens) != len(log_probs) or any(not log_prob <= 0.0 for log_prob in log_probs):
            raise InvalidArgument("log_probs", "must be one per token, none above 0")
        start = len(self._tokens)
        value = self._scores[parent] if parent != ANCHOR else 0.0
        depth = self._depths[parent] + 1 if parent != ANCHOR else 1
        self._tokens.extend(tokens)
        self._parents.extend([parent] * len(tokens))
        self._depths.extend([depth] * len(tokens))
        self._scores.extend(value + float(log_prob) for log_prob in log_probs)
        return range(start, len(self._tokens))

    def frontier(self) -> list[int]:
        """The `top_k` most valuable nodes of the deepest level, most valuable first."""
        deepest = self._depths[-1] if self._depths else 0
        return self._best([n for n, depth in enumerate(self._depths) if depth == deepest], self._top_k)

    def rerank(self, nodes: int) -> RankedTree:
        """The `nodes` most valuable candidates of all levels, in the order in which they were added."""
        kept = sorted(self._best(range(len(self)), nodes))
        number = {ANCHOR: ANCHOR} | {node: index for index, node in enumerate(kept)}
        return RankedTree(
            tuple(self._tokens[node] for node in kept),
            tuple(number[self._parents[node]] for node in kept),
            tuple(self._depths[node] for node in kept),
            tuple(self._scores[node] for node in kept),
        )

    def _best(self, nodes: Sequence[int], count: int) -> list[int]:
        candidates = np.array(nodes, dtype=np.int64)
        scores = np.array([self._scores[node] for node in nodes])
        best: list[int] = candidates[np.lexsort((candidates, -scores))][:count].tolist()
        return best
