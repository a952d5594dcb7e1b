"""Growing a draft model's offer level by level: by a shape planned before anything is drawn, or by path value.

In a planned shape a node's number names its coin, and how many children it gets follows from the plan alone, so no drawn
value decides what else is drawn (docs/decisions/0004-merging.md). Two draws of one token are one row: only the first is
grown, and the places planned below the second stay empty. Growth by value (EAGLE-2) decides by what was found, so it is for
ranked children without q only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from contracts.draft_law import DraftLaw
from contracts.topology import ANCHOR
from contracts.tree_shape import TreeShape
from models.laws import TargetLaws
from proposer.draft_choice import Choose, Siblings
from proposer.topology.eagle2 import DynamicTree

Int64Array = npt.NDArray[np.int64]


class Drafter(Protocol):
    """What is grown over: a draft model's cache (draft_cache.py says what each call does), or a head with its rows."""

    def follow(self, prefix: Int64Array) -> Tensor: ...

    def stage(self, token_ids: Sequence[int], parents: Sequence[int], depths: Sequence[int]) -> Tensor: ...

    def settle(self, path: Sequence[int]) -> None: ...


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
    """A row that the draft runs. node: its number in the offer; plan: its number in what was planned or grown."""

    token: int
    parent: int
    node: int
    plan: int


class _Rows:
    """The rows run so far, one per distinct full prefix, with their logits; row -1 is the anchor."""

    def __init__(self, anchor_logits: Tensor, capacity: int) -> None:
        self._rows: list[_Row] = []
        self._logits = anchor_logits.new_empty((capacity + 1, anchor_logits.shape[-1]))
        self._logits[0] = anchor_logits

    def __getitem__(self, row: int) -> _Row:
        return self._rows[row] if row >= 0 else _Row(token=-1, parent=ANCHOR, node=ANCHOR, plan=ANCHOR)

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


Process = Callable[[Tensor, Int64Array, Int64Array], TargetLaws]


def grow(cache: Drafter, prefix: Int64Array, process: Process, choose: Choose, shape: TreeShape) -> DraftTree:
    """Drafts the nodes of `shape`, which has some; rows without children are not run.

    prefix: int64 [L], L >= 1. process: laws from (logits float32 [N + 1, V], row tokens, row parents), row 0 the anchor's.
    The cache ends up holding the prefix and the tree's leftmost path.
    """
    tree = DraftTree()
    rows = _Rows(cache.follow(prefix), len(shape))
    level = range(ANCHOR, ANCHOR + 1)
    for depth in range(1, shape.max_depth + 1):
        laws = process(*rows.tensors())
        fresh: list[_Row] = []
        for number in level:
            row = rows[number]
            first = shape.first_child(row.plan)
            siblings = choose(laws, number, depth=depth, count=shape.children(row.plan), first_draw=first)
            for rank, token in enumerate(siblings.tokens):
                if shape.children(first + rank) and token not in siblings.tokens[:rank]:
                    fresh.append(_Row(token, number, len(tree.tokens) + rank, first + rank))
            tree.add(siblings, row.node, depth)
        if not fresh:
            break
        level = _run(cache, rows, fresh, depth)
    cache.settle(rows.leftmost_path())
    return tree


def grow_by_value(
    cache: Drafter,
    prefix: Int64Array,
    process: Process,
    choose: Choose,
    *,
    top_k: int,
    node_budget: int,
    max_depth: int,
) -> DraftTree:
    """EAGLE-2's tree: each level the `top_k` most valuable nodes get `top_k` children; the best `node_budget` are kept.

    node_budget, max_depth: at least 1. choose: ranked children with log-probabilities and without law. Otherwise as `grow`.
    """
    grown = DynamicTree(top_k)
    rows = _Rows(cache.follow(prefix), top_k * max(0, max_depth - 1))
    level = range(ANCHOR, ANCHOR + 1)
    for depth in range(1, max_depth + 1):
        laws = process(*rows.tensors())
        row_of: dict[int, int] = {}
        for number in level:
            siblings = choose(laws, number, depth=depth, count=top_k, first_draw=0)
            # Rounding may put a certain token's log-probability a hair above 0.
            log_probs = [min(0.0, log_prob) for log_prob in siblings.log_probs]
            row_of |= dict.fromkeys(grown.add(rows[number].plan, siblings.tokens, log_probs), number)
        if depth == max_depth:
            break
        fresh = [_Row(grown.token(node), row_of[node], node, node) for node in grown.frontier()]
        level = _run(cache, rows, fresh, depth)
    cache.settle(rows.leftmost_path())
    ranked = grown.rerank(node_budget)
    return DraftTree(list(ranked.tokens), list(ranked.parents), list(ranked.depths), list(ranked.scores))


def _run(cache: Drafter, rows: _Rows, fresh: Sequence[_Row], depth: int) -> range:
    """Runs one level's rows, which stand at `depth`; returns their numbers."""
    tokens, parents = [row.token for row in fresh], [row.parent for row in fresh]
    return rows.extend(fresh, cache.stage(tokens, parents, [depth] * len(fresh)))
