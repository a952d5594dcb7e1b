"""Sparse draft laws are integer weights that sum to 2^32, and are drawn from exactly."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from contracts.draft_law import TOTAL, DraftLaw, check_law, law_from_probabilities
from contracts.errors import InvalidArgument
from tests.helpers.proposals import point_law


def law(ids: list[int], weights: list[int]) -> DraftLaw:
    return DraftLaw(np.array(ids, dtype=np.int64), np.array(weights, dtype=np.int64))


def test_probabilities_are_exact_fractions_of_two_to_the_32() -> None:
    made = law_from_probabilities([5, 2, 9], [0.5, 0.3, 0.2])
    assert sum(Fraction(made.probability(t)) for t in (2, 5, 9)) == 1
    assert made.weight(5) == TOTAL // 2
    assert made.weight(7) == 0
    assert made.dense(12).sum() == pytest.approx(1.0, abs=0)


def test_truncation_keeps_the_likeliest_and_breaks_ties_by_lower_token_id() -> None:
    made = law_from_probabilities(np.arange(10), np.ones(10), support=3)
    assert made.token_ids.tolist() == [0, 1, 2]
    assert sorted(made.weights.tolist()) == [TOTAL // 3, TOTAL // 3, TOTAL // 3 + 1]


def test_tokens_whose_share_rounds_to_nothing_leave_the_support() -> None:
    made = law_from_probabilities([0, 1], [1.0, 1e-12])
    assert made.token_ids.tolist() == [0]
    assert made.weights.tolist() == [TOTAL]


def test_every_integer_coin_falls_on_the_token_that_owns_its_interval() -> None:
    made = law([3, 4, 8], [1, TOTAL - 3, 2])
    assert [made.draw(b) for b in (0, 1, TOTAL - 3, TOTAL - 2, TOTAL - 1)] == [3, 4, 4, 8, 8]


def test_draws_on_a_coarse_grid_reproduce_the_law_exactly() -> None:
    made = law([1, 2, 6], [TOTAL // 8, TOTAL // 2, 3 * TOTAL // 8])
    counts = Counter(made.draw(b) for b in range(0, TOTAL, TOTAL // 64))
    assert counts == {1: 8, 2: 32, 6: 24}


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (law([1, 2], [TOTAL // 2, TOTAL // 2 - 1]), "weights"),
        (law([1, 2], [TOTAL, 0]), "weights"),
        (law([2, 1], [TOTAL // 2, TOTAL // 2]), "token_ids"),
        (law([1, 1], [TOTAL // 2, TOTAL // 2]), "token_ids"),
        (law([1, 10], [TOTAL // 2, TOTAL // 2]), "token_ids"),
        (law([-1, 1], [TOTAL // 2, TOTAL // 2]), "token_ids"),
        (law([], []), "law"),
        (law([1, 2], [-1, TOTAL + 1]), "weights"),
    ],
)
def test_a_law_that_is_not_one_is_refused_naming_the_field(bad: DraftLaw, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_law(bad, vocab_size=10)
    assert field in caught.value.field


@pytest.mark.parametrize("bad", [[np.nan, 1.0], [-0.1, 1.1], [0.0, 0.0], [np.inf, 1.0]])
def test_a_law_cannot_be_made_of_nan_negative_or_empty_mass(bad: list[float]) -> None:
    with pytest.raises(InvalidArgument, match="probabilities"):
        law_from_probabilities([0, 1], bad)


def test_a_point_law_holds_all_the_mass() -> None:
    made = point_law(3)
    check_law(made, vocab_size=4)
    assert made.probability(3) == 1.0
    assert made.draw(TOTAL - 1) == 3
