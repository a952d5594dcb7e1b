"""Which shape a round gets: a plan answers from the round's budget and depth alone, before anything is drawn.

That is what makes every plan admissible for relations with q (docs/decisions/0004-merging.md). `GrownByValue` is the one
way that is none: it decides while drafting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from contracts.calibration import CalibrationUse
from contracts.errors import InvalidArgument
from contracts.manifest import TargetIdentity
from contracts.proposal import MAX_NODES
from contracts.sampling import SamplingPolicy
from contracts.topology import Topology
from contracts.tree_shape import TreeShape, shape_from_paths
from proposer.topology.acceptance import Float64Array, selected_table
from proposer.topology.cartesian import cartesian
from proposer.topology.counting import with_root, without_root
from proposer.topology.hardware import Choice, RoundCosts, choose
from proposer.topology.medusa_search import sparse_search
from proposer.topology.sequoia import best_shape, expected_by_size


class TreePlan(Protocol):
    """Plans are frozen values; `to_json` goes into the source's version, so it must name all that shapes the answer."""

    def shape(self, node_budget: int, max_depth: int) -> TreeShape:
        """A shape of at most `node_budget` candidates, at most `max_depth` deep, possibly empty."""
        ...

    @property
    def topology(self) -> Topology:
        """What sources of this plan declare."""
        ...

    def check(self, target: TargetIdentity, policy: SamplingPolicy, verifier: str = "") -> None:
        """Raises FailedPrecondition where the plan was made for another target, sampler, verifier or hardware."""
        ...

    def check_source(self, drafter: str, relation: str) -> None:
        """Raises FailedPrecondition where the plan was made for another drafter (a digest) or relation."""
        ...

    @property
    def label(self) -> str:
        """What the source's version shows in the clear: the calibration used and whether it was forced; "" for none."""
        ...

    def to_json(self) -> Mapping[str, Any]: ...


class _HoldsAnywhere:
    """Plans that claim nothing about the target."""

    @property
    def label(self) -> str:
        return ""

    def check(self, target: TargetIdentity, policy: SamplingPolicy, verifier: str = "") -> None:
        """Nothing to check."""

    def check_source(self, drafter: str, relation: str) -> None:
        """Nothing to check."""


@dataclass(frozen=True)
class CompleteTree(_HoldsAnywhere):
    """widths: children per node at depth 1, 2, ..., the last for all deeper levels. Cut breadth first to the budget."""

    widths: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        if not self.widths or not all(1 <= width <= MAX_NODES for width in self.widths):
            raise InvalidArgument("widths", f"{self.widths} must be widths within [1, {MAX_NODES}]")

    def shape(self, node_budget: int, max_depth: int) -> TreeShape:
        return cartesian(self.widths, nodes=node_budget, depth=max_depth)

    @property
    def topology(self) -> Topology:
        return Topology.SEQUENCE if set(self.widths) == {1} else Topology.TREE

    def to_json(self) -> Mapping[str, Any]:
        return {"widths": self.widths}


CHAIN = CompleteTree((1,))


@dataclass(frozen=True)
class FixedTree(_HoldsAnywhere):
    """One shape (Medusa's choices, Sequoia's tree), cut breadth first where the budget or the depth is smaller."""

    tree: TreeShape

    def shape(self, node_budget: int, max_depth: int) -> TreeShape:
        return self.tree.within(node_budget, max_depth)

    @property
    def topology(self) -> Topology:
        return self.tree.topology

    def to_json(self) -> Mapping[str, Any]:
        return {"parents": self.tree.parents}


class _HoldsWhereMeasured:
    """Plans from a calibration, None where the numbers claim nothing about where they hold."""

    calibration: CalibrationUse | None

    @property
    def topology(self) -> Topology:
        return Topology.TREE

    @property
    def label(self) -> str:
        return self.calibration.label if self.calibration else ""

    def check(self, target: TargetIdentity, policy: SamplingPolicy, verifier: str = "") -> None:
        """Raises FailedPrecondition unless the calibration holds for the session or was forced."""
        if self.calibration is not None:
            self.calibration.check(target, policy, verifier)

    def check_source(self, drafter: str, relation: str) -> None:
        """Raises FailedPrecondition unless the calibration is the source's own or was forced."""
        if self.calibration is not None:
            self.calibration.check_source(drafter, relation)


@dataclass(frozen=True, eq=False)
class CalibratedTree(_HoldsWhereMeasured):
    """The hardware-aware best tree within each round's budget and depth.

    A tree made for 64 nodes and cut to 8 is not the best of 8, so each budget gets its own; all come from one table, solved
    at start. acceptance: see `acceptance.selected_table`. nodes, depth: largest candidates and depth considered, the former
    within what `costs` has measured. calibration: the artifact that both come from, as it is used here; None claims nothing
    about where the numbers hold.
    """

    acceptance: Float64Array
    costs: RoundCosts
    nodes: int
    depth: int
    calibration: CalibrationUse | None = None
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
            "overhead_us": self.costs.overhead_us,
            "nodes": self.nodes,
            "depth": self.depth,
            "calibration": self.label,
        }


@dataclass(frozen=True, eq=False)
class SparseTree(_HoldsWhereMeasured):
    """Medusa's calibrated sparse tree (medusa_search.py) of all nodes that a round may have; no account of what they cost.

    accuracies: float64 [D, R], the chance that the token of rank r at depth d + 1 is the target's, the path to it holding.
    nodes: most candidates. calibration: the artifact they come from.
    """

    accuracies: Float64Array
    nodes: int
    calibration: CalibrationUse | None = None
    _shapes: dict[tuple[int, int], TreeShape] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        selected_table(self.accuracies, "accuracies")
        if not 1 <= self.nodes <= MAX_NODES:
            raise InvalidArgument("nodes", f"{self.nodes} is outside [1, {MAX_NODES}]")

    def shape(self, node_budget: int, max_depth: int) -> TreeShape:
        # Nodes found one after another nest, so a smaller budget takes the first of them; a smaller depth is another search.
        key = (max(0, min(node_budget, self.nodes)), max(0, min(max_depth, len(self.accuracies))))
        if key not in self._shapes:
            found = sparse_search(self.accuracies[: key[1]], key[0]) if min(key) else ()
            self._shapes[key] = shape_from_paths(found)
        return self._shapes[key]

    def to_json(self) -> Mapping[str, Any]:
        return {"accuracies": self.accuracies.tolist(), "nodes": self.nodes, "calibration": self.label}


@dataclass(frozen=True)
class GrownByValue(_HoldsAnywhere):
    """EAGLE-2's dynamic tree (eagle2.py): children per node and nodes grown per level, and levels at most."""

    top_k: int = 4
    depth: int = 6

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= 64:
            raise InvalidArgument("top_k", f"{self.top_k} is outside [1, 64]")
        if not 1 <= self.depth <= 64:
            raise InvalidArgument("depth", f"{self.depth} is outside [1, 64]")

    @property
    def staged_rows(self) -> int:
        """Rows a drafter runs for one tree, the first level's root aside."""
        return self.top_k * (self.depth - 1)

    @property
    def topology(self) -> Topology:
        return Topology.TREE

    def to_json(self) -> Mapping[str, Any]:
        return {"by_value": [self.top_k, self.depth]}
