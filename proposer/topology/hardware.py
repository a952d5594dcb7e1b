"""The hardware-aware choice of (nodes, depth): most expected tokens per measured time (arXiv 2402.12374, section 3.3;
M7.7 section 0x0AD), with a round's fixed cost added, which the paper leaves out.

    speed-up(n, d) = G(n, d) * (t(1) + o) / (t(n) + o + d * c + f)

Node counts include the root (counting.py). With o = f = 0 this is the paper's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from contracts.errors import InvalidArgument
from proposer.topology.acceptance import Float64Array


@dataclass(frozen=True)
class TargetCurve:
    """Measured time of a target pass by its rows, microseconds, linear between the points; one row must be among them."""

    rows: tuple[int, ...]
    us: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.us) or not self.rows or self.rows[0] != 1:
            raise InvalidArgument("target_curve", "needs one time per row count, from one row on")
        if any(b <= a for a, b in zip(self.rows, self.rows[1:], strict=False)) or min(self.us) <= 0.0:
            raise InvalidArgument("target_curve", "row counts must ascend and times be positive")

    def at(self, rows: int) -> float:
        """Microseconds of a pass of `rows` rows. Raises InvalidArgument beyond what was measured."""
        if not 1 <= rows <= self.rows[-1]:
            raise InvalidArgument("rows", f"{rows} is outside the measured [1, {self.rows[-1]}]")
        return float(np.interp(rows, self.rows, self.us))


@dataclass(frozen=True)
class RoundCosts:
    """target: t(n). draft_us: c, one level of drafting. overhead_us: o, what any round costs besides, plain ones too.

    fixed_us: f, what a round with candidates costs beyond that.
    """

    target: TargetCurve
    draft_us: float = 0.0
    fixed_us: float = 0.0
    overhead_us: float = 0.0

    def round_us(self, nodes: int, depth: int) -> float:
        """Cost of a round of `nodes` nodes, root included; without candidates it is the target's own step."""
        speculation = depth * self.draft_us + self.fixed_us if nodes > 1 else 0.0
        return self.target.at(nodes) + self.overhead_us + speculation

    def speedup(self, expected: float, nodes: int, depth: int) -> float:
        """Predicted speed-up over plain rounds of one token."""
        return expected * self.round_us(1, 0) / self.round_us(nodes, depth)


@dataclass(frozen=True)
class Choice:
    """nodes: root included. expected: tokens a round. us_per_token: predicted."""

    nodes: int
    depth: int
    expected: float
    us_per_token: float
    speedup: float


def choose(expected: Float64Array, costs: RoundCosts, *, sizes: Sequence[int] | None = None) -> Choice:
    """The cheapest (n, d) per expected token; of equals the fewest nodes, then the least depth.

    expected: float64 [max_nodes + 1, max_depth + 1], see `sequoia.expected_by_size`. sizes: node counts to consider,
    default all that were measured. One node at depth 0, no speculation, always competes: where drafting does not pay, it
    wins.
    """
    top = min(expected.shape[0] - 1, costs.target.rows[-1])
    found: Choice | None = None
    for nodes in sorted({1, *(range(1, top + 1) if sizes is None else sizes)}):
        for depth in range(expected.shape[1]):
            g = float(expected[nodes, depth])
            if np.isneginf(g) or depth >= nodes or (nodes > 1 and depth == 0):
                continue
            per_token = costs.round_us(nodes, depth) / g
            if found is None or per_token < found.us_per_token:
                found = Choice(nodes, depth, g, per_token, costs.speedup(g, nodes, depth))
    if found is None:
        raise InvalidArgument("expected", "holds no feasible tree")
    return found
