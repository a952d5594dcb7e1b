"""Growing a draft model's offer level by level: a chain or a tree whose shape is planned before anything is drawn.

The plan is the complete tree of the given widths, numbered breadth first and cut at the node budget (SpecInfer's expansion
configuration, Miao et al., ASPLOS 2024, section 3). A node's number names its coin, and how many children it gets follows
from the plan alone, so no drawn value decides what else is drawn (docs/decisions/0004-merging.md). Two draws of one token
are one row: only the first is grown, and the place planned below the second stays empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from torch import Tensor

from contracts.draft_law import DraftLaw
from contracts.topology import ANCHOR
from models.laws import TargetLaws
from proposer.draft_cache import DraftCache
from proposer.draft_choice import Choose, Siblings

Int64Array = npt.NDArray[np.int64]


@dataclass
class DraftTree:
    """tokens, parents (nodes, -1: the anchor), depths, path scores (sums of log-probabilities; empty with laws), laws."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    laws: dict[int, DraftLaw] = field(default_factory=dict)

    def add(self, siblings: Siblings, parent: int, depth: int) -> None:
        """Appends the children of `parent`."""
        if siblings.law is not None:
            self.laws[parent] = siblings.law
        before = self.scores[parent] if siblings.log_probs and parent >= 0 else 0.0
        self.scores.extend(before + log_prob for log_prob in siblings.log_probs)
        self.tokens.extend(siblings.tokens)
        self.parents.extend([parent] * len(siblings.tokens))
        self.depths.extend([depth] * len(siblings.tokens))


@dataclass(frozen=True, slots=True)
class _Row:
    """A row that the draft runs. `place`: its rank within its level of the plan."""

    token: int
    parent: int
    node: int
    place: int


class _Rows:
    """The rows run so far, one per distinct full prefix, with their logits; row -1 is the anchor."""

    def __init__(self, anchor_logits: Tensor, capacity: int) -> None:
        self._rows: list[_Row] = []
        self._logits = anchor_logits.new_empty((capacity + 1, anchor_logits.shape[-1]))
        self._logits[0] = anchor_logits

    def __getitem__(self, row: int) -> _Row:
        return self._rows[row] if row >= 0 else _Row(token=-1, parent=ANCHOR, node=ANCHOR, place=0)

    def tensors(self) -> tuple[Tensor, Int64Array, Int64Array]:
        """Logits float32 [N + 1, V], tokens and parents int64 [N]."""
        tokens = np.array([row.token for row in self._rows], dtype=np.int64)
        parents = np.array([row.parent for row in self._rows], dtype=np.int64)
        return self._logits[: len(self._rows) + 1], tokens, parents

    def extend(self, fresh: Sequence[_Row], logits: Tensor) -> range:
        """Appends rows with their logits; returns their numbers."""
        start = len(self._rows)
        self._rows.extend(fresh)
        self._logits[start + 1 : len(self._rows) + 1] = logits
        return range(start, len(self._rows))

    def leftmost_path(self) -> list[int]:
        """First children all the way down: the path kept in the cache for the next round."""
        path: list[int] = []
        for number, row in enumerate(self._rows):
            if row.parent == (path[-1] if path else ANCHOR):
                path.append(number)
        return path


def _levels(widths: Sequence[int], max_depth: int) -> Iterator[tuple[int, int, int]]:
    """(depth, width, number of the level's first node) of the complete tree."""
    first, size = 0, 1
    for depth in range(1, max_depth + 1):
        width = widths[min(depth, len(widths)) - 1]
        yield depth, width, first
        size *= width
        first += size


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
    """Drafts at most `node_budget` >= 1 nodes, at most `max_depth` >= 1 deep; rows without children are not run.

    prefix: int64 [L], L >= 1. process: laws from (logits float32 [N + 1, V], row tokens, row parents), row 0 the anchor's.
    widths: children per node at depth 1, 2, ...; the last one holds for all deeper levels. The cache ends up holding the
    prefix and the tree's leftmost path.
    """
    tree = DraftTree()
    rows = _Rows(cache.follow(prefix), node_budget)
    fresh: list[_Row] = []
    for depth, width, first_number in _levels(widths, max_depth):
        if depth == 1:
            level = range(ANCHOR, ANCHOR + 1)
        else:
            fresh = [row for row in fresh if first_number + row.place * width < node_budget]
            if not fresh:
                break
            tokens, parents = [row.token for row in fresh], [row.parent for row in fresh]
            level = rows.extend(fresh, cache.stage(tokens, parents, [depth - 1] * len(fresh)))
        laws = process(*rows.tensors())
        fresh = []
        for number in level:
            row = rows[number]
            first_place = row.place * width
            count = min(width, node_budget - first_number - first_place)
            siblings = choose(laws, number, depth=depth, count=count, first_draw=first_number + first_place)
            for rank, token in enumerate(siblings.tokens):
                if token not in siblings.tokens[:rank]:
                    fresh.append(_Row(token, number, len(tree.tokens) + rank, first_place + rank))
            tree.add(siblings, row.node, depth)
    cache.settle(rows.leftmost_path())
    return tree
