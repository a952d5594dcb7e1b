"""The design of the statistical test over whole generations.

SAMPLES was cut from 1500 to 1000, for time, after results at 1500 had been seen, and the power was computed afterwards. The
p-values are therefore those of a regression test; a confirmation needs new seeds under the design as it stands here.

* Sample: SAMPLES generations of HORIZON tokens per verifier, with seeds 0, 1, ..., SAMPLES - 1.
* Statistic: Pearson's chi-square on the joint law of the first 3 and of all 6 tokens, cells pooled in lexicographic order
  until each expects at least 8.
* Correction: Bonferroni at FAMILY_ALPHA over all TESTS p-values that exact verifiers must pass: two for each of them here
  and two for each right method that stands beside a wrong one in another world.
* Power: `output_law` enumerates what a wrong variant really publishes, and `power` is the chance that the test of the first
  3 tokens alone sees it at the corrected level. The size is such that it exceeds POWER for every wrong variant; the tests
  compute it. Position-keyed coins depend from round to round, so no enumeration of rounds gives their law; the biases
  that DECISIONS 6 reports for them take FLIP_SAMPLES generations of FLIP_HORIZON tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from scipy import stats

from contracts.graph import CandidateGraph, merge_by_full_prefix
from tests.helpers.enumeration import Branching, EnumeratedChooser, EnumeratedCoins, Prefix, branches, propose
from tests.unit.verifier.selection.rounds import (
    HORIZON,
    PROMPT,
    RELATIONS,
    VOCAB,
    GraphLaws,
    Method,
    World,
    drafter_of,
    generate,
)

SAMPLES = 1000
FLIP_SAMPLES, FLIP_HORIZON = 4000, 4
FAMILY_ALPHA = 0.01
TESTS = 2 * len(RELATIONS) + 2 * 2
ALPHA = FAMILY_ALPHA / TESTS
POWER = 0.999


def samples(world: World, method: Method, count: int = SAMPLES, horizon: int = HORIZON) -> list[Prefix]:
    return [generate(world, method, seed, horizon)[0] for seed in range(count)]


def p_values(world: World, drawn: Sequence[Prefix]) -> tuple[float, float]:
    """Chi-square p-values of the joint laws of the first 3 and of all tokens."""
    full = len(drawn[0])
    return _chi_square(world, [tokens[:3] for tokens in drawn]), _chi_square(world, [t[:full] for t in drawn])


def _pooled(world: World, length: int, count: int) -> list[list[Prefix]]:
    """All continuations of `length` tokens in lexicographic order, in groups of which each expects 8 of `count` samples."""
    groups: list[list[Prefix]] = []
    group: list[Prefix] = []
    want = 0.0
    for cell in np.ndindex(*[VOCAB] * length):
        group.append(cell)
        want += count * world.probability(cell)
        if want >= 8.0:
            groups.append(group)
            group, want = [], 0.0
    groups[-1] += group
    return groups


def _chi_square(world: World, drawn: Sequence[Prefix]) -> float:
    seen = Counter(drawn)
    for cell in seen:
        assert world.probability(cell) > 0.0, f"{cell} has probability 0 and was published"
    groups = _pooled(world, len(drawn[0]), len(drawn))
    observed = [sum(seen[cell] for cell in group) for group in groups]
    expected = np.array([sum(world.probability(cell) for cell in group) for group in groups])
    return float(stats.chisquare(observed, expected * (len(drawn) / expected.sum())).pvalue)


def _one_round(world: World, method: Method, published: Prefix) -> dict[Prefix, float]:
    """Probability of what one round publishes, over all drafts and coins."""
    out: dict[Prefix, float] = {}
    drafter = drafter_of(world, method, published)
    for weight, graph in branches(
        lambda tree: merge_by_full_prefix([propose(drafter, EnumeratedCoins(tree), VOCAB)], budget=64)
    ):
        at_rows = GraphLaws(world, published, graph)

        def run(tree: Branching, graph: CandidateGraph = graph, at_rows: GraphLaws = at_rows) -> Prefix:
            selection = method.select(graph, at_rows, EnumeratedChooser(tree), len(PROMPT) + len(published))
            return (*(int(graph.token_ids[row]) for row in selection.rows), selection.token)

        for inner, tokens in branches(run):
            out[tokens] = out.get(tokens, 0.0) + weight * inner
    return out


def output_law(world: World, method: Method, length: int, published: Prefix = ()) -> dict[Prefix, float]:
    """Exact probability of every continuation of `length` tokens that `method` publishes; its rounds are independent."""
    out: dict[Prefix, float] = {}
    for tokens, weight in _one_round(world, method, published).items():
        after = (*published, *tokens)
        rest = {after[:length]: 1.0} if len(after) >= length else output_law(world, method, length, after)
        for cell, probability in rest.items():
            out[cell] = out.get(cell, 0.0) + weight * probability
    return out


def power(world: World, law: dict[Prefix, float], count: int = SAMPLES) -> float:
    """Chance that the chi-square of `count` samples of `law` rejects the world's law at ALPHA (noncentral chi-square)."""
    groups = _pooled(world, len(next(iter(law))), count)
    right = np.array([sum(world.probability(cell) for cell in group) for group in groups])
    wrong = np.array([sum(law.get(cell, 0.0) for cell in group) for group in groups])
    freedom, noncentrality = len(groups) - 1, count * float(((wrong - right) ** 2 / right).sum())
    return float(stats.ncx2.sf(stats.chi2.isf(ALPHA, freedom), freedom, noncentrality))
