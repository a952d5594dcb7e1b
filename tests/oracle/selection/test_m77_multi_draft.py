"""M7.7 sections 0x08, 0x09, 0x0A: the multi-draft oracles with the document's own numbers."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from scipy.optimize import linprog

from contracts.draft_law import DraftLaw, law_from_probabilities
from contracts.topology import SamplingRelation
from tests.helpers.enumeration import Drafter, enumerate_round, marginal_error
from tests.unit.verifier.selection.cases import shipped
from tests.unit.verifier.selection.wrong_variants import retest_original
from verifier.selection.spectr import acceptance, smallest_rho

Floats = npt.NDArray[np.float64]
P = np.array([0.5, 0.3, 0.2])
Q = law_from_probabilities([0, 1, 2], [0.4, 0.4, 0.2])


def membership_optimum(p: Floats, q: Floats, k: int) -> float:
    """The largest mass that flows from draft vectors x (supply q^k) to tokens y of S(x) (demand p): 1 - transport cost."""
    vocab = len(p)
    vectors = list(itertools.product(range(vocab), repeat=k))
    edges = [(i, y) for i, x in enumerate(vectors) for y in sorted(set(x))]
    limits = np.zeros((len(vectors) + vocab, len(edges)))
    for e, (i, y) in enumerate(edges):
        limits[i, e] = limits[len(vectors) + y, e] = 1.0
    supply = np.array([np.prod(q[list(x)]) for x in vectors])
    result = linprog(-np.ones(len(edges)), A_ub=limits, b_ub=np.concatenate([supply, p]), bounds=(0, None))
    assert result.status == 0
    return -float(result.fun)


def k_sequential(p: Floats, law: DraftLaw, k: int) -> float:
    q = law.dense(len(p))[law.token_ids]
    on_support = p[law.token_ids]
    return acceptance(on_support, q, smallest_rho(on_support, q, k), k)[1]


def test_the_nine_draft_pairs_have_the_documents_supplies() -> None:
    q = Q.dense(3)
    supplies = {pair: q[list(pair)].prod() for pair in itertools.product(range(3), repeat=2)}
    assert len(supplies) == 9
    assert sum(supplies.values()) == pytest.approx(1.0, abs=1e-12)
    for pair, value in {(0, 0): 0.16, (0, 1): 0.16, (0, 2): 0.08, (2, 2): 0.04}.items():
        assert supplies[pair] == pytest.approx(value, abs=1e-9)


def test_membership_optimum_of_the_finite_oracle_is_one() -> None:
    assert membership_optimum(P, Q.dense(3), 2) == pytest.approx(1.0, abs=1e-9)


def test_one_draft_optimum_is_one_minus_total_variation() -> None:
    assert membership_optimum(P, Q.dense(3), 1) == pytest.approx(np.minimum(P, Q.dense(3)).sum(), abs=1e-9)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_k_sequential_selection_reaches_its_share_of_the_optimum(k: int) -> None:
    rng = np.random.default_rng(k)
    for _ in range(12):
        p, law = rng.dirichlet(np.full(3, 0.5)), law_from_probabilities(np.arange(3), rng.dirichlet(np.full(3, 0.5)))
        optimum, ours = membership_optimum(p, law.dense(3), k), k_sequential(p, law, k)
        assert (1 - 1 / np.e) * optimum - 1e-9 <= ours <= optimum + 1e-9
        if k == 1:
            assert ours == pytest.approx(optimum, abs=1e-9)


def test_acceptance_at_the_solved_rho_is_what_enumeration_of_the_shipped_code_accepts() -> None:
    drafter = Drafter("a", (2,), lambda prefix: Q, SamplingRelation.INDEPENDENT)
    outcome = enumerate_round([drafter], shipped("spectr"), lambda prefix: P, vocab_size=3, horizon=2)
    assert outcome.expected - 1 == pytest.approx(k_sequential(P, Q, 2), abs=1e-9)


def test_specinfer_oracle_reproduces_the_target_marginal() -> None:
    drafter = Drafter("a", (2,), lambda prefix: Q, SamplingRelation.INDEPENDENT)
    outcome = enumerate_round([drafter], shipped("specinfer"), lambda prefix: P, vocab_size=3, horizon=1)
    np.testing.assert_allclose([outcome.marginal[(token,)] for token in range(3)], [0.5, 0.3, 0.2], atol=1e-12)


def test_rerunning_each_candidate_against_the_original_p_fails_the_oracle() -> None:
    drafter = Drafter("a", (2,), lambda prefix: Q, SamplingRelation.INDEPENDENT)
    outcome = enumerate_round([drafter], retest_original, lambda prefix: P, vocab_size=3, horizon=1)
    assert marginal_error(outcome, lambda prefix: P, 1) > 0.01


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_retesting_k_copies_of_one_draft_gives_the_documents_excess(k: int) -> None:
    half = np.array([0.5, 0.5])
    point = law_from_probabilities([1], [1.0])
    drafter = Drafter("a", (k,), lambda prefix: point, SamplingRelation.INDEPENDENT)
    wrong = enumerate_round([drafter], retest_original, lambda prefix: half, vocab_size=2, horizon=1)
    assert wrong.marginal[(1,)] >= 1 - 2.0**-k - 1e-12
    right = enumerate_round([drafter], shipped("specinfer"), lambda prefix: half, vocab_size=2, horizon=1)
    assert right.marginal[(1,)] == pytest.approx(0.5, abs=1e-12)


def test_sequoia_beats_specinfer_on_an_overconfident_draft_at_low_temperature() -> None:
    p, law = np.array([0.1, 0.85, 0.05]), law_from_probabilities([0, 1, 2], [0.9, 0.08, 0.02])

    def expected(name: str, relation: SamplingRelation) -> float:
        drafter = Drafter("a", (2,), lambda prefix: law, relation)
        return enumerate_round([drafter], shipped(name), lambda prefix: p, vocab_size=3, horizon=2).expected

    sequoia = expected("sequoia", SamplingRelation.WITHOUT_REPLACEMENT)
    assert sequoia > expected("specinfer", SamplingRelation.INDEPENDENT) + 0.3
