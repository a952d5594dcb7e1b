"""Counter-based coins: known answers, open intervals, and independence of how they are read."""

import numpy as np
import pytest
import torch

from contracts.randomness import (
    GOLDEN,
    CoinChooser,
    Purpose,
    bits64,
    bits64_scalar,
    coin_key,
    gumbel,
    sample_key,
    uniform,
    uniforms,
)


def test_stream_is_splitmix64_with_its_published_first_values() -> None:
    # First outputs of the reference SplitMix64 seeded with 1234567.
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert bits64(1234567, range(5)).tolist() == expected


def test_scalar_and_vector_reads_of_a_stream_agree_at_any_index() -> None:
    key = coin_key(3, 17, "draft_model", Purpose.ACCEPT, 2)
    index = np.array([0, 1, 5, 49151, 2**32 - 1])
    assert bits64(key, index).tolist() == [bits64_scalar(key, int(i)) for i in index]
    assert uniforms(key, index).tolist() == [uniform(key, int(i)) for i in index]


def test_stream_has_the_same_bits_in_torch_int64() -> None:
    def signed(value: int) -> int:
        return value - (1 << 64) if value >= 1 << 63 else value

    def shift(x: torch.Tensor, by: int) -> torch.Tensor:
        return (x >> by) & ((1 << (64 - by)) - 1)

    key = sample_key(9, 4)
    x = torch.tensor(signed(key)) + (torch.arange(1000) + 1) * signed(GOLDEN)
    x = (x ^ shift(x, 30)) * signed(0xBF58476D1CE4E5B9)
    x = (x ^ shift(x, 27)) * signed(0x94D049BB133111EB)
    x = x ^ shift(x, 31)
    assert x.numpy().view(np.uint64).tolist() == bits64(key, range(1000)).tolist()


def test_uniforms_stay_strictly_inside_the_unit_interval_at_both_extremes() -> None:
    def from_bits(bits: int) -> float:
        return ((bits >> 12) + 0.5) * 2.0**-52

    assert 0.0 < from_bits(0) < from_bits((1 << 64) - 1) < 1.0


def test_gumbel_noise_is_finite_and_has_the_standard_mean_and_variance() -> None:
    noise = gumbel(sample_key(0, 0), np.arange(200_000))
    assert np.all(np.isfinite(noise))
    assert abs(noise.mean() - 0.5772156649) < 4 * np.sqrt(np.pi**2 / 6 / len(noise))
    assert abs(noise.var() - np.pi**2 / 6) < 0.03


@pytest.mark.parametrize(
    "other",
    [
        coin_key(2, 5, "s", Purpose.ACCEPT, 0),
        coin_key(1, 6, "s", Purpose.ACCEPT, 0),
        coin_key(1, 5, "t", Purpose.ACCEPT, 0),
        coin_key(1, 5, "s", Purpose.RESIDUAL, 0),
        coin_key(1, 5, "s", Purpose.ACCEPT, 1),
        sample_key(1, 5),
    ],
)
def test_every_part_of_a_coin_key_separates_streams(other: int) -> None:
    assert coin_key(1, 5, "s", Purpose.ACCEPT, 0) != other


def test_source_names_cannot_run_into_the_next_part_of_the_key() -> None:
    assert coin_key(1, 5, "adraft", Purpose.ACCEPT, 0) != coin_key(1, 5, "a", Purpose.DRAFT, 0)


def test_bernoulli_never_accepts_probability_zero_and_always_accepts_one() -> None:
    for frontier in range(2000):
        chooser = CoinChooser(7, frontier)
        assert not chooser.bernoulli(0.0, Purpose.ACCEPT, "s", 0)
        assert chooser.bernoulli(1.0, Purpose.ACCEPT, "s", 0)


def test_gumbel_argmax_never_picks_a_banned_token_and_follows_the_law() -> None:
    law = np.array([0.0, 0.5, 0.3, 0.2])
    with np.errstate(divide="ignore"):
        logs = np.log(law)
    counts = np.bincount([CoinChooser(seed, 0).gumbel_argmax(logs, 3) for seed in range(20_000)], minlength=4)
    assert counts[0] == 0
    expected = law[1:] * 20_000
    assert ((counts[1:] - expected) ** 2 / expected).sum() < 13.8  # chi-square, 2 degrees, p = 0.001


def test_categorical_follows_the_law_and_skips_zero_probabilities() -> None:
    law = np.array([0.25, 0.0, 0.75])
    counts = np.bincount(
        [CoinChooser(seed, 9).categorical(law, Purpose.RESIDUAL, "v", 0) for seed in range(20_000)], minlength=3
    )
    assert counts[1] == 0
    expected = law[[0, 2]] * 20_000
    assert ((counts[[0, 2]] - expected) ** 2 / expected).sum() < 10.8  # chi-square, 1 degree, p = 0.001
