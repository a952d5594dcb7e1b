"""contracts.drawing: children are drawn as declared, with coins of their own."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from contracts.draft_law import TOTAL, DraftLaw, law_from_probabilities
from contracts.drawing import (
    DraftCoins,
    draw_independent,
    draw_shared_noise,
    draw_without_replacement,
    extend_beam,
)
from contracts.errors import InvalidArgument
from contracts.randomness import CoinChooser
from tests.helpers.proposals import point_law

LAW = law_from_probabilities([2, 5, 7, 9], [0.4, 0.3, 0.2, 0.1])


class Scripted:
    """Answers with given indices and remembers what it was asked."""

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[list[int], int]] = []

    def below(self, weights: npt.NDArray[np.int64], draw: int) -> int:
        self.asked.append((weights.tolist(), draw))
        return self.answers.pop(0)


def test_independent_draws_use_one_coin_each_and_may_repeat() -> None:
    coins = Scripted(1, 1, 3)
    assert draw_independent(LAW, 3, coins, first_draw=4) == (5, 5, 9)
    assert [draw for _, draw in coins.asked] == [4, 5, 6]
    assert all(weights == LAW.weights.tolist() for weights, _ in coins.asked)


def test_draws_without_replacement_strike_tokens_and_fall_back_to_untried_tokens() -> None:
    coins = Scripted(0, 1, 0, 0, 1)
    law = law_from_probabilities([1, 3, 4], [0.5, 0.25, 0.25])
    assert draw_without_replacement(law, 5, coins, first_draw=0, vocab_size=6) == (1, 4, 3, 0, 5)
    assert [len(weights) for weights, _ in coins.asked] == [3, 2, 1, 3, 2]
    assert coins.asked[3][0] == [1, 1, 1]


def test_more_children_than_tokens_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="4 different tokens of a vocabulary of 3"):
        draw_without_replacement(point_law(0), 4, Scripted(0), first_draw=0, vocab_size=3)


def test_draft_coins_follow_the_integer_weights() -> None:
    # 8,000 draws, seeds 0..7999, one chi-square at 0.001.
    counts = Counter(draw_independent(LAW, 1, DraftCoins(seed, 3, "a"), first_draw=0)[0] for seed in range(8_000))
    observed = [counts[token] for token in LAW.token_ids.tolist()]
    assert stats.chisquare(observed, 8_000 * LAW.weights / TOTAL).pvalue > 1e-3


def test_draft_coins_without_replacement_follow_the_sequential_law() -> None:
    # 8,000 ordered pairs, one chi-square at 0.001.
    law = law_from_probabilities([0, 1, 2], [0.5, 0.3, 0.2])
    q = law.dense(3)
    pairs = Counter(
        draw_without_replacement(law, 2, DraftCoins(seed, 9, "a"), first_draw=0, vocab_size=3) for seed in range(8_000)
    )
    cells = [(a, b) for a in range(3) for b in range(3) if a != b]
    expected = np.array([q[a] * q[b] / (1 - q[a]) for a, b in cells]) * 8_000
    assert stats.chisquare([pairs[cell] for cell in cells], expected).pvalue > 1e-3


def test_a_full_weight_token_is_always_drawn() -> None:
    law = DraftLaw(np.array([4]), np.array([TOTAL]))
    assert all(DraftCoins(seed, 0, "a").below(law.weights, 0) == 0 for seed in range(200))


def test_coins_differ_by_draw_source_and_frontier() -> None:
    wide = np.ones(1 << 20, dtype=np.int64)
    values = [
        DraftCoins(1, 2, "a").below(wide, 0),
        DraftCoins(1, 2, "a").below(wide, 1),
        DraftCoins(1, 2, "b").below(wide, 0),
        DraftCoins(1, 3, "a").below(wide, 0),
        DraftCoins(2, 2, "a").below(wide, 0),
    ]
    assert len(set(values)) == len(values)
    assert values[0] == DraftCoins(1, 2, "a").below(wide, 0)


def test_shared_noise_offers_first_what_the_target_would_sample_from_the_same_law() -> None:
    p = np.array([0.5, 0.2, 0.2, 0.1])
    for position in range(200):
        offered = draw_shared_noise(np.arange(4), np.log(p), 3, seed=7, position=position)
        assert offered[0] == CoinChooser(7, 1).gumbel_argmax(np.log(p), position)
        assert len(set(offered)) == 3


def test_beam_keeps_the_best_continuations_in_order() -> None:
    grown = extend_beam([0.0, -1.0], [{3: -0.5, 4: -2.0}, {3: -0.1, 8: -0.5}], 3)
    assert grown == ((0, 3, -0.5), (1, 3, -1.1), (1, 8, -1.5))
    assert all(a[2] >= b[2] for a, b in pairwise(grown))
    assert extend_beam([0.0, 0.0], [{1: -1.0}, {0: -1.0}], 1) == ((0, 1, -1.0),)
