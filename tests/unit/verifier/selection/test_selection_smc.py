"""SMC's pure steps: weights, effective sample size, resampling, the exact anchors and the certificate."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from contracts.capability import Exactness
from contracts.draft_law import law_from_probabilities
from contracts.errors import InvalidArgument
from contracts.randomness import CoinChooser
from models.laws import TargetLaws
from tests.helpers.enumeration import EnumeratedChooser, branches
from verifier.selection.smc import (
    Population,
    block_log_weight,
    certify,
    effective_sample_size,
    normalised,
    pick,
    reweigh,
)

P = np.array([0.40, 0.25, 0.15, 0.08, 0.05, 0.03, 0.02, 0.02])
UNIFORM = law_from_probabilities(np.arange(8), np.full(8, 0.125))


def test_block_weight_is_the_product_of_ratios() -> None:
    laws = TargetLaws.from_probabilities([P, P, P])
    weight = block_log_weight(laws, (0, 1), (UNIFORM, UNIFORM))
    assert math.exp(weight) == pytest.approx(0.40 * 0.25 / 0.125**2)
    assert block_log_weight(laws, (), ()) == 0.0


def test_a_block_outside_the_targets_support_weighs_nothing_and_an_impossible_draw_is_refused() -> None:
    laws = TargetLaws.from_probabilities([[0.0, 1.0], [0.5, 0.5]])
    half = law_from_probabilities([0, 1], [0.5, 0.5])
    assert block_log_weight(laws, (0,), (half,)) == -math.inf
    with pytest.raises(InvalidArgument, match=r"tokens\[0\]"):
        block_log_weight(laws, (0,), (law_from_probabilities([1], [1.0]),))
    np.testing.assert_allclose(normalised(np.array([-math.inf, 0.0])), [0.0, 1.0])
    np.testing.assert_allclose(normalised(np.full(4, -math.inf)), np.full(4, 0.25))


def test_equal_weights_never_resample_and_one_heavy_particle_does() -> None:
    calm = reweigh(np.zeros(4), np.full(4, 3.0), CoinChooser(0, 1), name="smc", ess_threshold=2.0)
    assert calm.ess == pytest.approx(4.0)
    assert calm.ancestors == (0, 1, 2, 3)
    assert not calm.resampled
    heavy = reweigh(np.zeros(4), np.array([20.0, 0.0, 0.0, 0.0]), CoinChooser(0, 1), name="smc", ess_threshold=2.0)
    assert heavy.resampled
    assert heavy.ancestors == (0, 0, 0, 0)
    assert heavy.log_weights.tolist() == [0.0] * 4


def test_resampling_copies_each_particle_as_often_as_its_weight_says_in_expectation() -> None:
    logs = np.log(np.array([5.0, 1.0, 1.0]))
    copies = np.zeros(3)
    for weight, population in branches(
        lambda tree: reweigh(np.zeros(3), logs, EnumeratedChooser(tree), name="smc", ess_threshold=3.0)
    ):
        copies += weight * np.bincount(population.ancestors, minlength=3)
    np.testing.assert_allclose(copies, 3 * np.array([5.0, 1.0, 1.0]) / 7.0, atol=1e-12)


def test_equal_laws_weigh_exactly_one() -> None:
    law = law_from_probabilities(np.arange(8), P)
    laws = TargetLaws.from_probabilities([law.dense(8)] * 3)
    assert block_log_weight(laws, (0, 5), (law, law)) == 0.0


def test_only_drafting_nothing_is_certified_exact() -> None:
    certificate = certify(0.0, particles=8, drafted=0)
    assert certificate.exactness is Exactness.EXACT
    assert certificate.l1_bias_scale == certificate.mse_scale == 0.0
    assert certify(0.0, particles=8, drafted=2).exactness is Exactness.APPROXIMATE


def test_certificate_states_the_error_terms_and_what_they_leave_open() -> None:
    certificate = certify(0.25, particles=10, drafted=1, ess=(9.0, 4.0), log_normaliser=-0.1, resamplings=1)
    assert certificate.exactness is Exactness.APPROXIMATE
    assert (certificate.particles, certificate.drafted, certificate.resamplings) == (10, 1, 1)
    assert certificate.mse_scale == pytest.approx(0.125)
    assert certificate.l1_bias_scale == pytest.approx(math.sqrt(0.125))
    assert certificate.ess == (9.0, 4.0)
    assert certificate.log_normaliser == -0.1
    assert not certificate.resampling_bounded


def test_weighted_estimate_is_biased_for_one_particle_and_nears_the_target_with_many() -> None:
    # One drafted token per particle, enumerated over populations of N: the published token's law against p.
    p, q = np.array([0.8, 0.2]), np.array([0.3, 0.7])

    def error(count: int) -> float:
        law = np.zeros(2)
        for tokens in np.ndindex(*[2] * count):
            weights = (p / q)[list(tokens)]
            law += np.prod(q[list(tokens)]) * np.bincount(tokens, weights / weights.sum(), minlength=2)
        return float(np.abs(law - p).sum())

    errors = [error(count) for count in (1, 2, 4, 8)]
    assert errors[0] == pytest.approx(float(np.abs(q - p).sum()))
    assert errors[0] > errors[1] > errors[2] > errors[3] > 0.0


def test_final_pick_follows_the_weights() -> None:
    population = Population(np.log(np.array([1.0, 3.0])), (0, 1), 1.6, False)
    picked = Counter(pick(population, CoinChooser(seed, 4), name="smc") for seed in range(2_000))
    assert abs(picked[1] / 2_000 - 0.75) < 0.04


def test_effective_sample_size_is_between_one_and_n() -> None:
    assert effective_sample_size([1, 1, 1, 1]) == 4.0
    assert effective_sample_size([1, 0, 0]) == 1.0
