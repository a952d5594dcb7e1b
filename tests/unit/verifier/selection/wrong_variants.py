"""Mistakes that documents and bug reports name, each as a drop-in for shipped code; every one must fail the shared tests.

`enumerated()` yields (name, error) of those that the enumeration of the shipped verifiers (which pass it at 1e-12) judges;
`sampled()` holds those that whole generations judge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from contracts.draft_law import TOTAL, DraftLaw, law_from_probabilities
from contracts.graph import CandidateGraph, merge_by_full_prefix
from contracts.proposal import Proposal, ProposalNode
from contracts.randomness import Chooser, Purpose
from contracts.receipt import Closing
from contracts.topology import ANCHOR, ProbabilitySemantics, SamplingRelation, Topology
from models.laws import TargetLaws
from tests.helpers.enumeration import (
    Branching,
    EnumeratedChooser,
    Prefix,
    Select,
    branches,
    continuations,
    laws_for,
)
from tests.unit.verifier.selection.cases import Case, laws, shipped
from tests.unit.verifier.selection.rounds import Method
from verifier.selection import Selection
from verifier.selection.typical import ALPHA, EPSILON, threshold
from verifier.selection.walk import close, numbered_draws

Floats = npt.NDArray[np.float64]


def _walk(
    graph: CandidateGraph, target: TargetLaws, chooser: Chooser, *, against_original: bool, residual_at_end: bool
) -> Selection:
    """SpecInfer's walk with the residual update left out in one of two places."""
    rows: list[int] = []
    row = ANCHOR
    draws_at = numbered_draws(graph)
    while True:
        original = current = target.row(row)
        accepted = None
        for index in draws_at.get(row, ()):
            draw, law = graph.draws[index], graph.laws[graph.draws[index].law]
            token = graph.token_ids[draw.row : draw.row + 1]
            tested = original if against_original else current
            ratio = float(tested.at(token)[0]) / law.probability(int(token[0]))
            if chooser.bernoulli(min(1.0, ratio), Purpose.ACCEPT, draw.source, index):
                accepted = draw.row
                break
            _, current = current.minus(law.token_ids, law.weights / TOTAL)
        if accepted is None:
            return close(rows, current if residual_at_end else original, chooser, "wrong", tested=True)
        rows.append(accepted)
        row = accepted


def retest_original(graph: CandidateGraph, target: TargetLaws, chooser: Chooser) -> Selection:
    """Every candidate is tested against the original p."""
    return _walk(graph, target, chooser, against_original=True, residual_at_end=True)


def residual_dropped(graph: CandidateGraph, target: TargetLaws, chooser: Chooser) -> Selection:
    """The closing token comes from p instead of the residual."""
    return _walk(graph, target, chooser, against_original=False, residual_at_end=False)


def _shared_uniform(chooser: Chooser, edges: list[float]) -> float:
    """A uniform up to the cells that `edges` cut it into: the midpoint of a cell chosen by its length."""
    cuts = sorted({0.0, 1.0, *(min(1.0, max(0.0, edge)) for edge in edges)})
    cell = chooser.categorical(np.diff(cuts), Purpose.ACCEPT, "shared", 0)
    return (cuts[cell] + cuts[cell + 1]) / 2


def accept_coin_reused(graph: CandidateGraph, target: TargetLaws, chooser: Chooser) -> Selection:
    """One node, one draw: the uniform that rejected also picks the residual token by inverse CDF."""
    draw, law = graph.draws[0], graph.laws[0]
    token = graph.token_ids[draw.row : draw.row + 1]
    ratio = min(1.0, float(target.row(ANCHOR).at(token)[0]) / law.probability(int(token[0])))
    _, residual = target.row(ANCHOR).minus(law.token_ids, law.weights / TOTAL)
    cdf = np.cumsum(residual.dense())
    u = _shared_uniform(chooser, [ratio, *cdf.tolist()])
    if u < ratio:
        return close([draw.row], target.row(draw.row), chooser, "wrong", tested=False)
    return Selection((), int(np.searchsorted(cdf, u)), Closing.RESIDUAL)


def without_replacement_unnormalised(graph: CandidateGraph, target: TargetLaws, chooser: Chooser) -> Selection:
    """Sequoia that strikes drawn tokens out of q but forgets to renormalise the rest."""
    current, struck = target.row(ANCHOR), np.zeros(target.vocab_size)
    for index in numbered_draws(graph).get(ANCHOR, ()):
        draw, law = graph.draws[index], graph.laws[graph.draws[index].law]
        token = int(graph.token_ids[draw.row])
        q = law.dense(target.vocab_size) * (struck == 0)
        if chooser.bernoulli(min(1.0, float(current.at(np.array([token]))[0]) / q[token]), Purpose.ACCEPT, "w", index):
            return close([draw.row], target.row(draw.row), chooser, "wrong", tested=False)
        _, current = current.minus(np.arange(target.vocab_size), q)
        struck[token] = 1
    return close([], current, chooser, "wrong", tested=True)


def k_sequential_without_rho(graph: CandidateGraph, target: TargetLaws, chooser: Chooser) -> Selection:
    """SpecTr at rho = 1: each of k draws accepted as if it were the only one, closing by [p - q]_+."""
    law = graph.laws[0]
    for index in numbered_draws(graph).get(ANCHOR, ()):
        draw = graph.draws[index]
        token = graph.token_ids[draw.row : draw.row + 1]
        ratio = float(target.row(ANCHOR).at(token)[0]) / law.probability(int(token[0]))
        if chooser.bernoulli(min(1.0, ratio), Purpose.ACCEPT, draw.source, index):
            return close([draw.row], target.row(draw.row), chooser, "wrong", tested=False)
    _, residual = target.row(ANCHOR).minus(law.token_ids, law.weights / TOTAL)
    return close([], residual, chooser, "wrong", tested=True)


def block_without_lowering(graph: CandidateGraph, target: TargetLaws, chooser: Chooser) -> Selection:
    """Block verification whose prefixes are accepted by p_i instead of h_i after their suffix was rejected."""
    tokens, budgets = graph.token_ids.tolist(), [1.0]
    for i, token in enumerate(tokens):
        q = graph.laws[graph.draws[i].law].probability(token)
        budgets.append(min(1.0, budgets[-1] * target.probability(i - 1, token) / q))
    for length in range(len(tokens), -1, -1):
        if length == 0 or chooser.bernoulli(budgets[length], Purpose.ACCEPT, "w", length):
            law = target.row(length - 1)
            if length < len(tokens):
                q_next = graph.laws[graph.draws[length].law]
                scale = max(budgets[length], 1e-300)
                _, law = law.minus(q_next.token_ids, q_next.weights / TOTAL / scale)
            return close(list(range(length)), law, chooser, "wrong", tested=length < len(tokens))
    raise AssertionError("the anchor is always accepted")


def _offer(tokens: list[int], law: DraftLaw, relation: SamplingRelation) -> CandidateGraph:
    nodes = tuple(ProposalNode(token, -1, 1, "a", "", q=law.probability(token)) for token in tokens)
    semantics = ProbabilitySemantics.NORMALIZED_CONDITIONAL
    return merge_by_full_prefix(
        [Proposal("a", nodes, semantics, relation, Topology.SET, "", {-1: law})], budget=len(nodes)
    )


def _drawn_wrong(
    draw: Callable[[Branching, DraftLaw], list[int]], verifier: str, relation: SamplingRelation, declared: DraftLaw
) -> float:
    """Error of a shipped verifier at one node whose candidates were not drawn as declared."""
    target, _ = laws("random", 0, 3)
    marginal: dict[Prefix, float] = {}

    def run(tree: Branching) -> tuple[int, ...]:
        graph = _offer(draw(tree, declared), declared, relation)
        selection = shipped(verifier)(graph, laws_for(graph, target), EnumeratedChooser(tree))
        return (*(int(graph.token_ids[row]) for row in selection.rows), selection.token)

    for weight, tokens in branches(run):
        for rest, p in continuations(tokens, 2, target):
            marginal[rest] = marginal.get(rest, 0.0) + weight * p
    exact = dict(continuations((), 2, target))
    return max(abs(p - marginal.get(key, 0.0)) for key, p in exact.items())


def _draw(tree: Branching, law: DraftLaw) -> int:
    return int(law.token_ids[tree.choose([(i, w / TOTAL) for i, w in enumerate(law.weights.tolist())])])


def _shared_draft_coin() -> float:
    """The uniform that drew x (inverse CDF) also decides its acceptance."""
    target, draft = laws("random", 0, 3)
    p, q = target(()), draft(()).dense(3)
    cdf, ratios = np.cumsum(q), np.minimum(1.0, p / q)
    out = np.maximum(p - q, 0.0)
    out = out / out.sum()
    marginal = np.zeros(3)
    for x in range(3):
        low, high = cdf[x] - q[x], cdf[x]
        taken = max(0.0, min(high, ratios[x]) - low)
        marginal[x] += taken
        marginal += (high - low - taken) * out
    return float(np.abs(marginal - p).max())


def _typical_with_maximum() -> float:
    """Share of plausible tokens whose fate changes when typical acceptance takes the larger of its two bounds."""
    target = TargetLaws.from_probabilities([[0.88, 0.10, 0.02]]).row(ANCHOR)
    p = target.dense()
    right = p > threshold(target.entropy())
    wrong = p > max(EPSILON, ALPHA * math.exp(-target.entropy()))
    return float(np.mean(right != wrong))


_SELECTS: dict[str, tuple[Select, Case]] = {
    "retest every candidate against the original p": (retest_original, Case("specinfer", "random", 3, (2,))),
    "no residual update before the closing token": (residual_dropped, Case("rejection", "random", 3, (1,))),
    "iid verifier on draws without replacement": (shipped("specinfer"), Case("sequoia", "random", 3, (2,))),
    "q not renormalised after a draw without replacement": (
        without_replacement_unnormalised,
        Case("sequoia", "random", 3, (2,)),
    ),
    "accept coin reused for the residual": (accept_coin_reused, Case("rejection", "random", 3, (1,))),
    "k draws tested without SpecTr's rho": (k_sequential_without_rho, Case("spectr", "random", 3, (2,))),
    "block prefix accepted by p_i after its suffix was rejected": (
        block_without_lowering,
        Case("block", "random", 3, (1, 1)),
    ),
}


def enumerated() -> Iterator[tuple[str, float]]:
    """(name, marginal error) of every wrong variant that enumeration can judge."""
    for name, (select, case) in _SELECTS.items():
        yield name, case.error(select)
    _, draft = laws("random", 0, 3)
    declared = draft(())
    by_rank = [int(t) for t in declared.token_ids[np.argsort(-declared.weights, kind="stable")]]
    independent, without = SamplingRelation.INDEPENDENT, SamplingRelation.WITHOUT_REPLACEMENT
    hotter = law_from_probabilities(declared.token_ids, (declared.weights / TOTAL) ** 0.5)
    yield "argmax draft with softmax q", _drawn_wrong(lambda tree, law: by_rank[:1], "rejection", independent, declared)
    yield "frequency passed as q", _drawn_wrong(lambda tree, law: by_rank[:2], "sequoia", without, declared)
    yield (
        "q from another temperature",
        _drawn_wrong(lambda tree, law: [_draw(tree, hotter)], "rejection", independent, declared),
    )
    yield (
        "candidates pruned by what was drawn",
        _drawn_wrong(
            lambda tree, law: [max((_draw(tree, law), _draw(tree, law)), key=law.weight)],
            "rejection",
            independent,
            declared,
        ),
    )
    yield "draft and accept share a coin", _shared_draft_coin()
    yield "a maximum where typical acceptance has a minimum", _typical_with_maximum()


def sampled() -> dict[str, Method]:
    """Variants that whole generations over the tiny transformer must catch; their power is computed with the design's."""
    independent = SamplingRelation.INDEPENDENT
    return {
        "retest every candidate against the original p": Method(
            independent, (2, 1), lambda graph, target, chooser, _: retest_original(graph, target, chooser)
        ),
        "no residual update before the closing token": Method(
            independent, (2, 1), lambda graph, target, chooser, _: residual_dropped(graph, target, chooser)
        ),
        "block prefix accepted by p_i after its suffix was rejected": Method(
            independent, (1, 1, 1), lambda graph, target, chooser, _: block_without_lowering(graph, target, chooser)
        ),
    }
