"""Gumbel-max on the device: same bits, same samples as the reference, and samples of the law."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from contracts.randomness import CoinChooser, Purpose, bits64, gumbel, sample_key
from models.law_rows import DenseLaw, SparseLaw, draw_from, law_from_vector, sample_at
from models.law_scores import DeviceScores, HostScores, bits64_torch, scores_of

CPU = torch.device("cpu")


@pytest.mark.parametrize("key", [0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, sample_key(3, 7)])
def test_torch_stream_is_bit_equal_to_the_numpy_stream(key: int) -> None:
    ours = bits64_torch(key, 5000, CPU).numpy().view(np.uint64)
    np.testing.assert_array_equal(ours, bits64(key, np.arange(5000)))


def test_bits_above_a_threshold_are_found_on_both_paths() -> None:
    key, threshold = sample_key(1, 2), 1 << 51
    expected = np.flatnonzero((bits64(key, np.arange(3000)) >> np.uint64(12)) >= np.uint64(threshold))
    for scores in (HostScores(np.zeros(3000)), DeviceScores(torch.zeros(3000))):
        np.testing.assert_array_equal(scores.noisy_enough(key, threshold), expected)


@pytest.mark.parametrize("scale", [0.0, 0.01, 1.0, 3.0, 12.0])
def test_pruned_argmax_equals_the_argmax_over_all_perturbed_scores(scale: float) -> None:
    generator = torch.Generator().manual_seed(int(scale * 100))
    for position in range(60):
        scores = torch.randn(5003, generator=generator) * scale
        scores[torch.rand(5003, generator=generator) < 0.1] = -torch.inf
        key = sample_key(5, position)
        with np.errstate(divide="ignore"):
            noisy = scores.double().numpy() / 0.8 + gumbel(key, np.arange(5003))
        for count in (1, 5, 100):
            top = DenseLaw.of_logits(scores_of(scores), 0.8).noisy_top(key, count)
            assert top.tolist() == np.argsort(-noisy)[:count].tolist()


def test_short_vocabularies_and_single_tokens_are_sampled() -> None:
    assert DenseLaw.of_logits(scores_of(torch.tensor([3.0]))).noisy_argmax(9) == 0
    only = torch.full((200,), -torch.inf)
    only[150] = 1.0
    assert DenseLaw.of_logits(scores_of(only)).noisy_argmax(9) == 150


def test_dense_sparse_and_reference_choosers_sample_the_same_tokens() -> None:
    rng = np.random.default_rng(0)
    for position in range(200):
        p = rng.dirichlet(np.full(300, 0.2))
        p[rng.integers(300, size=50)] = 0.0
        p /= p.sum()
        chooser = CoinChooser(11, position)
        with np.errstate(divide="ignore"):
            expected = chooser.gumbel_argmax(np.log(p), position)
        sparse, dense = law_from_vector(p), law_from_vector(p, device="cpu")
        assert isinstance(sparse, SparseLaw)
        assert isinstance(dense, DenseLaw)
        assert sample_at(sparse, chooser, position) == sample_at(dense, chooser, position) == expected
        coin = chooser.categorical(p, Purpose.RESIDUAL, "x", 0)
        assert draw_from(sparse, chooser, Purpose.RESIDUAL, "x", 0) == coin
        assert draw_from(dense, chooser, Purpose.RESIDUAL, "x", 0) == coin


@pytest.mark.parametrize("device", [None, "cpu"])
def test_gumbel_max_samples_the_law(device: str | None) -> None:
    # 6,000 samples, seed 1, one chi-square at 0.001; a shift of one cell by 0.04 would be seen with power above 0.99.
    p = np.array([0.5, 0.25, 0.0, 0.15, 0.07, 0.03])
    law = law_from_vector(p, device=device)
    counts = np.bincount([law.noisy_argmax(sample_key(1, i)) for i in range(6_000)], minlength=6)
    assert counts[2] == 0
    assert stats.chisquare(counts[p > 0], 6_000 * p[p > 0]).pvalue > 1e-3


def test_gumbel_top_k_is_a_sample_without_replacement() -> None:
    # 6,000 ordered pairs of three tokens, one chi-square at 0.001.
    p = np.array([0.6, 0.3, 0.1])
    law = law_from_vector(p, device="cpu")
    pairs = [tuple(law.noisy_top(sample_key(2, i), 2).tolist()) for i in range(6_000)]
    cells = [(a, b) for a in range(3) for b in range(3) if a != b]
    expected = [p[a] * p[b] / (1 - p[a]) for a, b in cells]
    observed = [pairs.count(cell) for cell in cells]
    assert stats.chisquare(observed, 6_000 * np.array(expected)).pvalue > 1e-3
    assert law.noisy_top(5, 9).tolist() == law_from_vector(p).noisy_top(5, 9).tolist()


def test_both_forms_of_a_law_subtract_and_measure_alike() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        p = rng.dirichlet(np.full(40, 0.3))
        sparse, dense = law_from_vector(p), law_from_vector(p, device="cpu")
        tokens = np.sort(rng.choice(40, 12, replace=False))
        q = rng.dirichlet(np.ones(12))
        for left, right in (
            (sparse.minus(tokens, q), dense.minus(tokens, q)),
            (sparse.minus_elsewhere(0.02, tokens), dense.minus_elsewhere(0.02, tokens)),
        ):
            assert left[0] == pytest.approx(right[0], abs=1e-15)
            np.testing.assert_allclose(left[1].dense(), right[1].dense(), atol=1e-15)
        assert sparse.entropy() == pytest.approx(dense.entropy(), abs=1e-12)
        for one, two in zip(sparse.top(5), dense.top(5), strict=True):
            np.testing.assert_array_equal(one, two)


def test_subtracting_everything_leaves_the_law_and_reports_no_mass() -> None:
    p = np.array([0.25, 0.75])
    for law in (law_from_vector(p), law_from_vector(p, device="cpu")):
        mass, left = law.minus(np.array([0, 1]), p)
        assert mass == 0.0
        assert left is law


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_laws_sample_and_subtract_like_the_reference() -> None:
    rng = np.random.default_rng(0)
    tokens, amounts = np.arange(0, 3000, 50), np.full(60, 1e-3)
    for position in range(50):
        p = rng.dirichlet(np.full(3000, 0.2))
        cuda, host = law_from_vector(p, device="cuda"), law_from_vector(p)
        key = sample_key(3, position)
        assert cuda.noisy_top(key, 4).tolist() == host.noisy_top(key, 4).tolist()
        np.testing.assert_allclose(
            cuda.minus(tokens, amounts)[1].dense(), host.minus(tokens, amounts)[1].dense(), atol=1e-12
        )
