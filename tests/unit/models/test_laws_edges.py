"""Probabilities that stand exactly on a threshold are kept, whichever way their logits were rounded."""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate

import numpy as np
import pytest
import torch

from contracts.sampling import SamplingPolicy
from models.laws import LawProcessor

# Likeliest first; sums and ratios of these meet every threshold below exactly.
LAWS = [
    [Fraction(n, sum(counts)) for n in counts]
    for counts in ((4, 2, 1, 1), (1, 1), (5, 3, 2), (4, 3, 2, 1), (10, 5, 3, 1, 1), (6, 6, 6, 2), (50, 25, 20, 4, 1))
]


def kept(law: list[Fraction], policy: SamplingPolicy, shift: float) -> list[int]:
    """Tokens left of logits log p + shift in float32, which round differently at each shift."""
    logits = torch.from_numpy((np.log([float(p) for p in law]) + shift).astype(np.float32))[None]
    none = np.zeros(0, dtype=np.int64)
    processor = LawProcessor(policy, vocab_size=len(law), prompt_len=1, eos_ids=())
    row = processor.laws(logits, prefix=np.zeros(1, np.int64), token_ids=none, parents=none).row(-1)
    return [*np.flatnonzero(row.dense()).tolist()]


@pytest.mark.parametrize("shift", [0.0, 0.1, -0.4, 0.9])
@pytest.mark.parametrize("law", LAWS)
def test_top_p_stops_at_the_token_that_reaches_the_mass_exactly(law: list[Fraction], shift: float) -> None:
    for count, mass in enumerate(accumulate(law[:-1]), start=1):
        assert kept(law, SamplingPolicy(top_p=float(mass)), shift) == [*range(count)]
        assert kept(law, SamplingPolicy(top_p=float(mass) + 1e-4), shift) == [*range(count + 1)]


@pytest.mark.parametrize("shift", [0.0, 0.1, -0.4, 0.9])
@pytest.mark.parametrize("law", LAWS)
def test_min_p_keeps_the_tokens_of_exactly_that_share_of_the_largest(law: list[Fraction], shift: float) -> None:
    for p in law:
        share = p / law[0]
        assert kept(law, SamplingPolicy(min_p=float(share)), shift) == [i for i, one in enumerate(law) if one >= p]
        if share < 1:
            above = SamplingPolicy(min_p=float(share) + 1e-4)
            assert kept(law, above, shift) == [i for i, one in enumerate(law) if one > p]
