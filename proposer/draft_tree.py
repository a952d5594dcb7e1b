"""Growing a draft model's offer level by level: chains and trees of fixed widths, drawn from its laws or ranked by them.

How many children a node gets is settled by its depth and by what is left of the budget, before any of them is drawn, so
that trimming never depends on a drawn value (docs/decisions/0004-merging.md). The widths by depth are SpecInfer's
expansion configuration (Miao et al., ASPLOS 2024, section 3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from contracts.draft_law import DraftLaw
from contracts.randomness import Purpose, bits64_scalar, coin_key
from contracts.topology import ANCHOR
from models.laws import TargetLaws
from proposer.draft_cache import DraftCache

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Children:
    """Siblings in draw order, duplicates kept: tokens, log-probabilities where ranked, the law where drawn."""

    tokens: Sequence[int]
    log_probs: Sequence[float] = ()
    law: DraftLaw | None = None


class Choose(Protocol):
    """Chooses `count` children of the row whose law is `laws.row(row)`; the first of them will be node `first_node`."""

    def __call__(self, laws: TargetLaws, row: int, count: int, first_node: int) -> Children: ...


@dataclass(frozen=True)
class Drawn:
    """Independent draws from the row's law, cut to its `support` likeliest tokens.

    Node i reads the upper 32 bits of the coin (seed, frontier, source, draft, i).
    """

    seed: int
    frontier: int
    source: str
    support: int

    def __call__(self, laws: TargetLaws, row: int, count: int, first_node: int) -> Children:
        law = laws.draft_law(row, support=self.support)
        coins = (coin_key(self.seed, self.frontier, self.source, Purpose.DRAFT, first_node + i) for i in range(count))
        return Children([law.draw(bits64_scalar(coin) >> 32) for coin in coins], law=law)


def ranked(laws: TargetLaws, row: int, count: int, first_node: int) -> Children:
    """The row's `count` likeliest tokens, best first, ties to the lower id."""
    ids, probabilities = laws.row(row).top(count)
    return Children(ids.tolist(), np.log(probabilities).tolist())


@dataclass
class DraftTree:
    """tokens, parents (nodes, -1: the anchor), depths, path scores (sums of log-probabilities; empty when drawn), laws."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    laws: dict[int, DraftLaw] = field(default_factory=dict)

    def add(self, children: Children, parent: int) -> dict[int, int]:
        """Appends siblings; returns the first node of each distinct token."""
        first: dict[int, int] = {}
        if children.law is not None:
            self.laws[parent] = children.law
        before = self.scores[parent] if children.log_probs and parent >= 0 else 0.0
        self.scores.extend(before + log_prob for log_prob in children.log_probs)
        for token in children.tokens:
            first.setdefault(token, len(self.tokens))
            self.tokens.append(token)
            self.parents.append(parent)
            self.depths.append(1 if parent < 0 else self.depths[parent] + 1)
        return first


class _Rows:
    """The rows that the draft ran: one per distinct full prefix, where the tree may hold duplicates."""

    def __init__(self, anchor_logits: Tensor, capacity: int) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.nodes: list[int] = []
        self._logits = anchor_logits.new_empty((capacity + 1, anchor_logits.shape[-1]))
        self._logits[0] = anchor_logits

    @property
    def logits(self) -> Tensor:
        return self._logits[: len(self.tokens) + 1]

    def node(self, row: int) -> int:
        return ANCHOR if row == ANCHOR else self.nodes[row]

    def extend(self, fresh: Sequence[tuple[int, int, int]], logits: Tensor) -> range:
        """Appends (token, parent row, node) with their logits; returns the new rows."""
        start = len(self.tokens)
        for token, parent, node in fresh:
            self.tokens.append(token)
            self.parents.append(parent)
            self.nodes.append(node)
        self._logits[start + 1 : len(self.tokens) + 1] = logits
        return range(start, len(self.tokens))

    def leftmost_path(self) -> list[int]:
        """First children all the way down: the path kept in the cache for the next round."""
        path: list[int] = []
        for row, parent in enumerate(self.parents):
            if parent == (path[-1] if path else ANCHOR):
                path.append(row)
        return path


def grow(
    cache: DraftCache,
    prefix: Int64Array,
    process: Callable[[Tensor, Int64Array, Int64Array], TargetLaws],
    choose: Choose,
    *,
    widths: Sequence[int],
    node_budget: int,
    max_depth: int,
) -> DraftTree:
    """Drafts at most `node_budget` >= 1 nodes, at most `max_depth` >= 1 deep; the last level is never run.

    prefix: int64 [L], L >= 1. process: laws from (logits float32 [N + 1, V], row tokens, row parents), row 0 the anchor's.
    widths: children per node at depth 1, 2, ...; the last one holds for all deeper levels. The cache ends up holding the
    prefix and the tree's leftmost path.
    """
    tree = DraftTree()
    rows = _Rows(cache.follow(prefix), node_budget)
    level = range(ANCHOR, ANCHOR + 1)
    for depth in range(1, max_depth + 1):
        laws = process(rows.logits, np.array(rows.tokens, dtype=np.int64), np.array(rows.parents, dtype=np.int64))
        width = widths[min(depth, len(widths)) - 1]
        fresh: list[tuple[int, int, int]] = []
        for row in level:
            count = min(width, node_budget - len(tree.tokens))
            if count == 0:
                break
            first = tree.add(choose(laws, row, count, len(tree.tokens)), rows.node(row))
            fresh.extend((token, row, node) for token, node in first.items())
        if depth == max_depth or len(tree.tokens) == node_budget:
            break
        tokens, parents = [token for token, _, _ in fresh], [parent for _, parent, _ in fresh]
        level = rows.extend(fresh, cache.stage(tokens, parents, [depth] * len(fresh)))
    cache.settle(rows.leftmost_path())
    return tree
