"""The map between draft indices and target ids, and the laws over both."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from contracts.draft_law import TOTAL
from contracts.errors import Internal
from contracts.sampling import SamplingPolicy
from models.laws import LawProcessor
from proposer.heads.draft_laws import HeadLaws, edits
from proposer.heads.vocabulary import frequent
from tests.unit.proposer.heads.tiny_heads import EOS, VOCAB, VOCABULARY

NONE = np.zeros(0, np.int64)
PREFIX = np.array([3, 4, 5])


def test_the_map_is_exact_both_ways() -> None:
    every = np.arange(VOCAB)
    back = VOCABULARY.to_draft(every)
    inside = back >= 0
    assert np.array_equal(every[inside], VOCABULARY.ids)
    assert np.array_equal(VOCABULARY.to_target(back[inside]), VOCABULARY.ids)


def test_frequent_tokens_are_kept_ties_go_to_the_lower_id_and_eos_is_always_in() -> None:
    counts = Counter({9: 5, 3: 2, 7: 2, 8: 2})
    chosen = frequent(counts, 4, target_size=VOCAB, eos_ids=(EOS,))
    assert chosen.ids.tolist() == [EOS, 3, 7, 9]
    assert frequent(counts, 4, target_size=VOCAB, eos_ids=(EOS,), always=(8, 4)).ids.tolist() == [EOS, 4, 8, 9]
    assert len(frequent(counts, 10, target_size=VOCAB, eos_ids=(EOS,))) == 10
    assert len(frequent(counts, 99, target_size=VOCAB, eos_ids=(EOS,))) == VOCAB


def laws_of(policy: SamplingPolicy, logits: torch.Tensor):
    made = HeadLaws(policy, VOCABULARY, prompt_len=3, eos_ids=(EOS,), support=64)
    return made.laws(logits, prefix=PREFIX, token_ids=NONE, parents=NONE)


def spread(logits: torch.Tensor) -> torch.Tensor:
    out = torch.full((len(logits), VOCAB), float("-inf"))
    out[:, torch.from_numpy(VOCABULARY.ids)] = logits
    return out


POLICIES = (
    SamplingPolicy(temperature=1.0),
    SamplingPolicy(temperature=0.7, top_p=0.8),
    SamplingPolicy(temperature=1.3, top_k=5, min_p=0.01),
    SamplingPolicy(temperature=0.0),
    SamplingPolicy(temperature=1.0, logit_bias={9: 3.0, 2: 50.0}),
    SamplingPolicy(temperature=1.0, banned_ids=(4, 9)),
    SamplingPolicy(temperature=1.0, repetition_penalty=1.4, min_tokens=9),
)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: f"t{policy.temperature}-{edits(policy)}")
def test_laws_are_those_of_the_logits_spread_over_the_targets_vocabulary(policy: SamplingPolicy) -> None:
    logits = 2.0 * torch.randn(1, len(VOCABULARY), generator=torch.Generator().manual_seed(2))
    reference = LawProcessor(policy, vocab_size=VOCAB, prompt_len=3, eos_ids=(EOS,)).laws(
        spread(logits), prefix=PREFIX, token_ids=NONE, parents=NONE
    )
    laws = laws_of(policy, logits)
    assert laws.vocab_size == VOCAB
    ids, probabilities = laws.row(-1).top(6)
    wanted_ids, wanted = reference.row(-1).top(6)
    assert ids.tolist() == wanted_ids.tolist()
    assert np.allclose(probabilities, wanted, rtol=1e-6)
    law, expected = laws.draft_law(-1), reference.draft_law(-1)
    assert law.token_ids.tolist() == expected.token_ids.tolist()
    assert sum(law.weights.tolist()) == TOTAL
    assert np.abs(law.weights - expected.weights).max() <= TOTAL * 1e-6
    assert laws.argmax(-1) == reference.argmax(-1)
    assert set(law.token_ids.tolist()) <= set(VOCABULARY.ids.tolist())


def test_logits_that_are_no_numbers_are_an_error_of_ours() -> None:
    logits = torch.full((1, len(VOCABULARY)), float("nan"))
    with pytest.raises(Internal, match="finite"):
        laws_of(SamplingPolicy(temperature=1.0), logits).row(-1)


def test_policies_that_name_tokens_are_told_from_those_that_do_not() -> None:
    plain = SamplingPolicy(temperature=0.5, top_k=3, top_p=0.5, min_p=0.1, typical_p=0.9, max_tokens=3, stop_ids=(4,))
    assert not edits(plain)
    for change in (
        {"logit_bias": {1: 1.0}},
        {"banned_ids": (1,)},
        {"allowed_ids": (1,)},
        {"min_tokens": 1},
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.1},
        {"frequency_penalty": 0.1},
    ):
        assert edits(replace(plain, **change))
