"""Exhaustive enumeration of shipped drawing and selection code through injected choosers.

`branches(run)` calls `run(tree)` once per path through its random choices, with the exact probability of the path. The
choosers below turn coins into such choices: `EnumeratedCoins` for contracts.drawing, `EnumeratedChooser` for verifiers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from contracts.draft_law import DraftLaw
from contracts.drawing import DrawCoins, draw_independent, draw_without_replacement
from contracts.graph import CandidateGraph, merge_by_full_prefix
from contracts.proposal import Proposal, ProposalNode
from contracts.randomness import Chooser, Purpose
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology
from models.laws import TargetLaws
from verifier.selection.base import Selection

T = TypeVar("T")
Floats = npt.NDArray[np.float64]
Prefix = tuple[int, ...]


class Branching:
    """Replays a prefix of choices, then takes first options; the stack says where to go on."""

    def __init__(self) -> None:
        self.stack: list[tuple[int, list[tuple[int, float]]]] = []
        self.depth = 0
        self.weight = 1.0

    def choose(self, options: list[tuple[int, float]]) -> int:
        """One of `options` (value, probability); options of probability 0 are never taken."""
        if self.depth == len(self.stack):
            self.stack.append((0, [option for option in options if option[1] > 0.0]))
        taken, known = self.stack[self.depth]
        self.depth += 1
        value, probability = known[taken]
        self.weight *= probability
        return value

    def advance(self) -> bool:
        """Moves to the next unexplored path; False when there is none."""
        self.depth, self.weight = 0, 1.0
        while self.stack:
            taken, options = self.stack[-1]
            if taken + 1 < len(options):
                self.stack[-1] = (taken + 1, options)
                return True
            self.stack.pop()
        return False


def branches(run: Callable[[Branching], T]) -> Iterator[tuple[float, T]]:
    """(probability, result) of every path through `run`'s choices."""
    tree = Branching()
    while True:
        result = run(tree)
        yield tree.weight, result
        if not tree.advance():
            return


class EnumeratedCoins:
    """contracts.drawing.DrawCoins over a Branching; a coin asked for twice is a test failure."""

    def __init__(self, tree: Branching) -> None:
        self._tree = tree
        self._used: set[int] = set()

    def below(self, weights: npt.NDArray[np.int64], draw: int) -> int:
        assert draw not in self._used, f"draft coin {draw} is used twice"
        self._used.add(draw)
        total = int(weights.sum())
        return self._tree.choose([(i, w / total) for i, w in enumerate(weights.tolist())])


class EnumeratedChooser:
    """contracts.randomness.Chooser over a Branching.

    A coin asked for twice fails, unless `reuse` is given: then it answers by the one uniform that it stands for, for the
    wrong variants that reuse coins.
    """

    def __init__(self, tree: Branching) -> None:
        self._tree = tree
        self._used: set[tuple[object, ...]] = set()

    def _once(self, *coin: object) -> None:
        assert coin not in self._used, f"coin {coin} decides two things"
        self._used.add(coin)

    def bernoulli(self, probability: float, purpose: Purpose, source: str, draw: int) -> bool:
        self._once(purpose, source, draw)
        assert 0.0 <= probability <= 1.0
        return self._tree.choose([(1, probability), (0, 1.0 - probability)]) == 1

    def categorical(self, probabilities: Floats, purpose: Purpose, source: str, draw: int) -> int:
        self._once(purpose, source, draw)
        return self._tree.choose(list(enumerate(probabilities.tolist())))

    def gumbel_argmax(self, log_probs: Floats, position: int) -> int:
        self._once("sample", position)
        return self._tree.choose(list(enumerate(np.exp(log_probs).tolist())))


@dataclass(frozen=True)
class Drafter:
    """A source: children per depth (fixed beforehand) and a law per prefix of candidate tokens."""

    name: str
    widths: tuple[int, ...]
    law_of: Callable[[Prefix], DraftLaw]
    relation: SamplingRelation


def propose(drafter: Drafter, coins: DrawCoins, vocab_size: int) -> Proposal:
    """Grows the drafter's tree level by level with shipped drawing code; node indices number the coins."""
    nodes: list[ProposalNode] = []
    laws: dict[int, DraftLaw] = {}
    level: list[tuple[int, Prefix]] = [(-1, ())]
    for depth, width in enumerate(drafter.widths, start=1):
        grown: list[tuple[int, Prefix]] = []
        for parent, prefix in level:
            law = laws[parent] = drafter.law_of(prefix)
            if drafter.relation is SamplingRelation.INDEPENDENT:
                drawn = draw_independent(law, width, coins, first_draw=len(nodes))
            else:
                drawn = draw_without_replacement(law, width, coins, first_draw=len(nodes), vocab_size=vocab_size)
            for token in drawn:
                grown.append((len(nodes), (*prefix, token)))
                nodes.append(ProposalNode(token, parent, depth, drafter.name, "", q=law.probability(token)))
        level = grown
    topology = Topology.SEQUENCE if set(drafter.widths) == {1} else Topology.TREE
    return Proposal(
        drafter.name,
        tuple(nodes),
        ProbabilitySemantics.NORMALIZED_CONDITIONAL,
        drafter.relation,
        topology,
        "",
        {parent: laws[parent] for parent in laws},
    )


def paths_of(graph: CandidateGraph) -> list[Prefix]:
    """The candidate tokens from the anchor to each row, the row's own last."""
    out: list[Prefix] = []
    for token, parent in zip(graph.token_ids.tolist(), graph.parents.tolist(), strict=True):
        out.append((out[parent] if parent >= 0 else ()) + (token,))
    return out


def laws_for(graph: CandidateGraph, target: Callable[[Prefix], Floats], *, device: str | None = None) -> TargetLaws:
    """The graph's target laws by conditional distributions float64 [V] of candidate prefixes."""
    return TargetLaws.from_probabilities([target(prefix) for prefix in [(), *paths_of(graph)]], device=device)


Select = Callable[[CandidateGraph, TargetLaws, Chooser], Selection]


@dataclass(frozen=True)
class Outcome:
    """marginal: probability of every token sequence of the horizon's length; expected: published tokens a round."""

    marginal: Mapping[Prefix, float]
    expected: float
    mass: float


def enumerate_round(
    drafters: Sequence[Drafter],
    select: Select,
    target: Callable[[Prefix], Floats],
    *,
    vocab_size: int,
    budget: int = 64,
    horizon: int,
    device: str | None = None,
) -> Outcome:
    """All outcomes of one round, drafts included, each published sequence continued by the target up to `horizon`."""
    published: dict[Prefix, float] = {}
    expected = mass = 0.0

    def drawn(tree: Branching) -> CandidateGraph:
        coins = [EnumeratedCoins(tree) for _ in drafters]
        offers = [propose(d, c, vocab_size) for d, c in zip(drafters, coins, strict=True)]
        return merge_by_full_prefix(offers, budget=budget)

    for draft_weight, graph in branches(drawn):
        laws = laws_for(graph, target, device=device)
        for weight, selection in branches(lambda tree, g=graph, t=laws: select(g, t, EnumeratedChooser(tree))):  # type: ignore[misc]
            tokens = (*(int(graph.token_ids[row]) for row in selection.rows), selection.token)
            published[tokens] = published.get(tokens, 0.0) + draft_weight * weight
            expected += draft_weight * weight * len(tokens)
            mass += draft_weight * weight
    marginal: dict[Prefix, float] = {}
    for tokens, weight in published.items():
        for rest, probability in continuations(tokens, horizon, target):
            marginal[rest] = marginal.get(rest, 0.0) + weight * probability
    return Outcome(marginal, expected, mass)


def continuations(tokens: Prefix, horizon: int, target: Callable[[Prefix], Floats]) -> Iterator[tuple[Prefix, float]]:
    """Every extension of `tokens` to `horizon` tokens (cut if longer) with its target probability."""
    if len(tokens) >= horizon:
        yield tokens[:horizon], 1.0
        return
    for token, p in enumerate(target(tokens).tolist()):
        if p > 0.0:
            for rest, probability in continuations((*tokens, token), horizon, target):
                yield rest, p * probability


def marginal_error(outcome: Outcome, target: Callable[[Prefix], Floats], horizon: int) -> float:
    """Largest absolute difference from the target's law over all sequences of the horizon's length."""
    exact = dict(continuations((), horizon, target))
    keys = exact.keys() | outcome.marginal.keys()
    return max(abs(exact.get(key, 0.0) - outcome.marginal.get(key, 0.0)) for key in keys)
