"""Which shape a round gets: a plan answers from the round's budget and depth alone, before anything is drawn.

That is what makes every plan admissible for relations with q (docs/decisions/0004-merging.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from contracts.errors import InvalidArgument
from contracts.proposal import MAX_NODES
from contracts.tree_shape import TreeShape
from proposer.topology.acceptance import Float64Array, selected_table
from proposer.topology.cartesian import cartesian
from proposer.topology.counting import with_root, without_root
from proposer.topology.hardware import Choice, RoundCosts, choose
from proposer.topology.sequoia import best_shape, expected_by_size


class TreePlan(Protocol):
    """Plans are frozen values; `to_json` goes into the source's version, so it must name all that shapes the answer."""

    def shape(self, node_budget: int, max_depth: int) -> TreeShape:
        """A shape of at most `node_budget` candidates, at most `max_depth` deep, possibly empty."""
        ...

    def to_json(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class CompleteTree:
    """widths: children per node at depth 1, 2, ..., the last for all deeper levels. Cut breadth first to the budget."""

    widths: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        if not self.widths or not all(1 <= width <= MAX_NODES for width in self.widths):
            raise InvalidArgument("widths", f"{self.widths} must be widths within [1, {MAX_NODES}]")

    def shape(self, node_budget: int, max_depth: int) -> TreeShape:
        return cartesian(self.widths, nodes=node_budget, depth=max_depth)

    def to_json(self) -> Mapping[str, Any]:
        return {"widths": self.widths}


@dataclass(frozen=True)
class FixedTree:
    """One shape (Medusa's choices, Sequoia's tree), cut breadth first where the budget or the depth is smaller."""

    tree: TreeShape

    def shape(self, node_budget: int, max_depth: int) -> TreeShape:
        return self.tree.within(node_budget, max_depth)

    def to_json(self) -> Mapping[str, Any]:
        return {"parents": self.tree.parents}


@dataclass(frozen=True, eq=False)
class CalibratedTree:
    """The hardware-aware best tree within each round's budget and depth.

    A tree made for 64 nodes and cut to 8 is not the best of 8, so each budget gets its own; all come from one table, solved
    at start. acceptance: see `acceptance.selected_table`. nodes, depth: largest candidates and depth considered, the former
    within what `costs` has measured. calibration: hash of the artifact they come from; "" where there is none.
    """

    acceptance: Float64Array
    costs: RoundCosts
    nodes: int
    depth: int
    calibration: str = ""
    _shapes: dict[tuple[int, int], TreeShape] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        selected_table(self.acceptance)
        if not 1 <= with_root(self.nodes) <= self.costs.target.rows[-1]:
            raise InvalidArgument(
                "nodes", f"{self.nodes} with the anchor exceed the {self.costs.target.rows[-1]} measured rows"
            )

    @cached_property
    def expected(self) -> Float64Array:
        """G by node count (root included) and depth."""
        return expected_by_size(self.acceptance, with_root(self.nodes), self.depth)

    def choice(self, node_budget: int, max_depth: int) -> Choice:
        """What the round's shape is expected to bring."""
        nodes, depth = max(0, min(node_budget, self.nodes)), max(0, min(max_depth, self.depth))
        return choose(self.expected[: with_root(nodes) + 1, : depth + 1], self.costs)

    def shape(self, node_budget: int, max_depth: int) -> TreeShape:
        chosen = self.choice(node_budget, max_depth)
        key = (chosen.nodes, chosen.depth)
        if key not in self._shapes:
            empty = without_root(chosen.nodes) == 0
            self._shapes[key] = TreeShape() if empty else best_shape(self.acceptance, *key)
        return self._shapes[key]

    def to_json(self) -> Mapping[str, Any]:
        return {
            "acceptance": self.acceptance.tolist(),
            "rows": self.costs.target.rows,
            "us": self.costs.target.us,
            "draft_us": self.costs.draft_us,
            "fixed_us": self.costs.fixed_us,
            "nodes": self.nodes,
            "depth": self.depth,
            "calibration": self.calibration,
        }
