"""Traversal verification: from the leaves to the root, whole paths are accepted or rejected.

Weng et al., "Traversal verification for speculative tree decoding", NeurIPS 2025, arXiv 2505.12398, algorithm 2.

A node carries a budget r, the probability with which it may be accepted, and a law b. The anchor has r = 1 and the
target's law; a child drawn as x from q_i gets min(1, r b(x) / q_i(x)). A node without untested children is accepted by a
coin of its budget, and then its whole path is. If it is rejected, its parent goes on with S = sum [r b - q_i]_+,
b' = [r b - q_i]_+ / S and r' = S / (S + 1 - r).

Why it is exact. Claim: a subtree entered with (r, b) is accepted with probability r over its own draws and coins, and given
that, what follows the node has the target's law with b at the node itself. A leaf: by its coin. Otherwise the first child
takes mass min(q_1(x), r b(x)) of first token x by the claim for children; what r b(x) still lacks is [r b(x) - q_1(x)]_+,
what is left of probability is 1 - r + S, and their quotient is (r', b'), to which the claim applies again.

Which relation it covers. The step needs the law of each draw given the earlier ones at its parent, and a subtree that is
untouched when it is entered. The paper's sampling, *without replacement*, gives both, and is what `traversal` declares. A
second draw of one token (by another source) does no harm: a child is rejected only if r b(x) < q(x), and then b'(x) = 0, so
the subtree that both draws share is never entered again. By the same argument independent draws are covered too, repeats
and all (`struck=False`; enumerated in the tests); block verification is their case of one draw per parent.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from contracts.capability import ROW_TOPOLOGIES, Exactness, VerifierCapability
from contracts.graph import CandidateGraph
from contracts.randomness import Chooser, Purpose
from contracts.topology import ANCHOR, ProbabilitySemantics, SamplingRelation
from models.law_rows import Law
from models.laws import TargetLaws
from verifier.selection.base import Selection
from verifier.selection.walk import close, coin_numbers, numbered_draws, ratio_of
from verifier.selection.without_replacement import Remaining


@dataclass
class _Node:
    """A node on the current path: the draw that led to it, its budget, law, untested draws and what is left of q."""

    draw: int
    row: int
    budget: float
    law: Law
    tested: int = 0
    left: dict[tuple[str, int], Remaining] = field(default_factory=dict)


def _lower(parent: _Node, law: Remaining) -> None:
    """The parent's budget and law after the child drawn from `law` was rejected."""
    share, rest = law.taken_from(parent.law, 1.0 / parent.budget)
    mass, lost = share * parent.budget, 1.0 - parent.budget
    # With no mass and nothing lost the rejection was a rounding of a certain acceptance: nothing changes.
    if mass > 0.0 or lost > 0.0:
        parent.law = rest
        parent.budget = mass / (mass + lost)


def traverse(graph: CandidateGraph, laws: TargetLaws, chooser: Chooser, name: str, *, struck: bool = True) -> Selection:
    """See the module's docstring. A child of budget 0 is rejected without a look at its subtree.

    struck: draws are without replacement per parent and source; otherwise they are independent.
    """
    numbers, draws_at = coin_numbers(graph), numbered_draws(graph)

    def law_of(parent: _Node, index: int) -> Remaining:
        draw = graph.draws[index]
        key = (draw.source, draw.law)
        if key not in parent.left:
            parent.left[key] = Remaining(graph.laws[draw.law], laws.vocab_size)
        return parent.left[key]

    def reject(parent: _Node, index: int) -> None:
        law = law_of(parent, index)
        _lower(parent, law)
        if struck:
            law.remove(int(graph.token_ids[graph.draws[index].row]))

    path = [_Node(-1, ANCHOR, 1.0, laws.row(ANCHOR))]
    while True:
        node = path[-1]
        children = draws_at.get(node.row, ())
        if node.budget > 0.0 and node.tested < len(children):
            index = children[node.tested]
            row = graph.draws[index].row
            token = int(graph.token_ids[row])
            ratio = ratio_of(node.budget * node.law.of(token), law_of(node, index).probability(token), index)
            node.tested += 1
            if ratio > 0.0:
                path.append(_Node(index, row, min(1.0, ratio), laws.row(row)))
            else:
                reject(node, index)
            continue
        source = graph.draws[node.draw].source if node.draw >= 0 else ""
        if node.row == ANCHOR or chooser.bernoulli(node.budget, Purpose.ACCEPT, source, numbers[node.draw]):
            return close([step.row for step in path[1:]], node.law, chooser, name, tested=node.tested > 0)
        path.pop()
        reject(path[-1], node.draw)


class Traversal:
    """Tree, set or sequence of draws without replacement per parent and source."""

    capability = VerifierCapability(
        name="traversal",
        exactness=Exactness.EXACT,
        promise="the target's law",
        semantics=frozenset({ProbabilitySemantics.NORMALIZED_CONDITIONAL}),
        relations=frozenset({SamplingRelation.WITHOUT_REPLACEMENT}),
        topologies=ROW_TOPOLOGIES,
        needs_law=True,
    )

    def select(self, graph: CandidateGraph, laws: TargetLaws, chooser: Chooser, *, prefix_len: int) -> Selection:
        """Accepts a path, then one residual or bonus token."""
        return traverse(graph, laws, chooser, self.capability.name)
