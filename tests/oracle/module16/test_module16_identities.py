"""Module 16: the identities of speculative sampling and of SMC, with the module's own numbers, against shipped code."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from contracts.capability import Exactness
from contracts.draft_law import DraftLaw, law_from_probabilities
from contracts.topology import SamplingRelation
from models.laws import TargetLaws
from tests.helpers.enumeration import Drafter, Outcome, enumerate_round
from tests.unit.verifier.selection.cases import shipped
from verifier.selection.smc import block_log_weight, certify, effective_sample_size

Floats = npt.NDArray[np.float64]
SMC_P = np.array([0.40, 0.25, 0.15, 0.08, 0.05, 0.03, 0.02, 0.02])


def law_of(q: npt.ArrayLike) -> DraftLaw:
    values = np.asarray(q, dtype=np.float64)
    return law_from_probabilities(np.arange(len(values)), values)


def one_round(p: Floats, law: DraftLaw, gamma: int, name: str = "rejection") -> Outcome:
    drafter = Drafter("draft", (1,) * gamma, lambda prefix: law, SamplingRelation.INDEPENDENT)
    return enumerate_round([drafter], shipped(name), lambda prefix: p, vocab_size=len(p), horizon=gamma + 1)


def expected_tokens(alpha: float, gamma: int) -> float:
    return gamma + 1.0 if alpha == 1.0 else (1 - alpha ** (gamma + 1)) / (1 - alpha)


def speed_up(alpha: float, gamma: int, cost: float) -> float:
    return expected_tokens(alpha, gamma) / (gamma * cost + 1)


@pytest.mark.parametrize(
    ("p", "q", "alpha"),
    [
        ([0.5, 0.3, 0.15, 0.05], [0.4, 0.4, 0.15, 0.05], 0.900),
        ([0.5, 0.3, 0.2], [0.45, 0.35, 0.20], 0.950),
        ([0.5, 0.3, 0.2], [0.1, 0.1, 0.8], 0.400),
    ],
)
def test_acceptance_rate_is_one_minus_total_variation(p: list[float], q: list[float], alpha: float) -> None:
    target = np.array(p)
    accepted = one_round(target, law_of(q), 1).expected - 1
    assert accepted == pytest.approx(alpha, abs=1e-8)
    assert accepted == pytest.approx(1 - 0.5 * np.abs(target - np.array(q)).sum(), abs=1e-8)


def test_residual_of_the_first_example_is_a_point() -> None:
    p, q = np.array([0.5, 0.3, 0.15, 0.05]), law_of([0.4, 0.4, 0.15, 0.05])
    _, residual = TargetLaws.from_probabilities(p[None]).row(-1).minus(q.token_ids, q.weights / 2.0**32)
    np.testing.assert_allclose(residual.dense(), [1.0, 0.0, 0.0, 0.0], atol=1e-8)


def test_accepted_mass_and_residual_recover_the_target() -> None:
    p, q = np.array([0.5, 0.2, 0.2, 0.1]), law_of([0.2, 0.4, 0.3, 0.1])
    mass, residual = TargetLaws.from_probabilities(p[None]).row(-1).minus(q.token_ids, q.weights / 2.0**32)
    np.testing.assert_allclose(np.minimum(p, q.dense(4)) + mass * residual.dense(), p, atol=1e-12)


@pytest.mark.parametrize("gamma", [1, 2, 3, 4])
def test_expected_tokens_are_the_truncated_geometric_series(gamma: int) -> None:
    p, law = np.array([0.7, 0.3]), law_of([0.4, 0.6])
    alpha = float(np.minimum(p, law.dense(2)).sum())
    assert one_round(p, law, gamma).expected == pytest.approx(expected_tokens(alpha, gamma), abs=1e-12)


def test_series_and_speed_up_have_the_modules_figures() -> None:
    table = {1: (1.85, 1.61), 2: (2.57, 1.98), 3: (3.19, 2.20), 4: (3.71, 2.32), 5: (4.15, 2.37), 6: (4.53, 2.38)}
    table |= {7: (4.85, 2.37), 8: (5.12, 2.33), 9: (5.35, 2.28), 10: (5.55, 2.22)}
    for gamma, (tokens, ratio) in table.items():
        assert round(expected_tokens(0.85, gamma), 2) == tokens
        assert round(speed_up(0.85, gamma, 0.15), 2) == ratio
    assert max(range(1, 11), key=lambda gamma: speed_up(0.85, gamma, 0.15)) == 6
    assert expected_tokens(1.0, 4) == 5.0
    assert expected_tokens(0.0, 4) == 1.0


def test_a_model_never_rejects_itself() -> None:
    law = law_of([0.2, 0.5, 0.3])
    for name in ("rejection", "block"):
        assert one_round(law.dense(3), law, 3, name).expected == pytest.approx(4.0, abs=1e-12)


def test_medusa_series_of_survival_products_has_the_modules_figures() -> None:
    for decay, tokens in ((0.9, 3.72), (0.7, 2.19), (0.5, 1.64)):
        heads = [decay**k for k in range(1, 6)]
        assert round(1 + sum(math.prod(heads[: k + 1]) for k in range(5)), 2) == tokens


def test_effective_sample_sizes_are_the_modules() -> None:
    assert effective_sample_size([1, 1, 1, 1]) == 4.0
    assert round(effective_sample_size([10, 1, 1, 1]), 3) == 1.641


def test_block_ratios_of_the_worked_round_are_the_modules() -> None:
    drafts = [[6, 3], [0, 1], [4, 2], [2, 3], [4, 5], [4, 0], [6, 4], [0, 6]]
    uniform = law_of(np.full(8, 0.125))
    laws = TargetLaws.from_probabilities([SMC_P] * 3)
    logs = [block_log_weight(laws, tuple(draft), (uniform, uniform)) for draft in drafts]
    assert [round(math.exp(w), 2) for w in logs] == [0.1, 6.4, 0.48, 0.77, 0.1, 1.28, 0.06, 0.51]
    assert round(effective_sample_size(np.exp(logs)), 2) == 2.15


def test_uniform_draft_gives_rejection_the_modules_acceptance() -> None:
    alpha = float(np.minimum(SMC_P, 0.125).sum())
    assert alpha == pytest.approx(0.575)
    assert round(expected_tokens(alpha, 2), 1) == 1.9


def test_error_terms_shrink_with_particles_and_grow_with_divergence() -> None:
    near, far = certify(0.01, particles=8, drafted=2), certify(0.64, particles=8, drafted=2)
    assert near.mse_scale < far.mse_scale
    assert certify(0.64, particles=80, drafted=2).mse_scale == pytest.approx(far.mse_scale / 10)
    assert far.exactness is Exactness.APPROXIMATE


def test_smc_speed_up_is_deterministic_in_k() -> None:
    for k in range(5):
        assert (k + 1) / (0.1 * k + 1) == pytest.approx(speed_up(1.0, k, 0.1))
