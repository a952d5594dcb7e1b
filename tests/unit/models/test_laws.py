"""models.laws: sampling parameters act on each node's law, by the node's own prefix, as in Transformers and vLLM."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from contracts.errors import Internal, InvalidArgument
from contracts.sampling import SamplingPolicy
from models.laws import LawProcessor, TargetLaws

VOCAB = 97
PREFIX = np.array([5, 9, 5, 17, 3, 3, 40])
PROMPT_LEN = 4
NONE = np.zeros(0, dtype=np.int64)


def laws_of(
    policy: SamplingPolicy,
    logits: torch.Tensor,
    *,
    prefix: np.ndarray = PREFIX,
    tokens: np.ndarray = NONE,
    parents: np.ndarray = NONE,
    eos: tuple[int, ...] = (2,),
    prompt_len: int = PROMPT_LEN,
) -> TargetLaws:
    processor = LawProcessor(policy, vocab_size=logits.shape[1], prompt_len=prompt_len, eos_ids=eos)
    return processor.laws(logits, prefix=prefix, token_ids=tokens, parents=parents)


def random_logits(seed: int, rows: int = 1, vocab: int = VOCAB, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale


def transformers_law(policy: SamplingPolicy, logits: torch.Tensor, prefix: np.ndarray) -> np.ndarray:
    """What Transformers' generate would sample from, in its own order of processors."""
    processors = LogitsProcessorList()
    if policy.repetition_penalty != 1.0:
        processors.append(RepetitionPenaltyLogitsProcessor(policy.repetition_penalty))
    processors.append(TemperatureLogitsWarper(policy.temperature))
    if policy.top_k:
        processors.append(TopKLogitsWarper(policy.top_k))
    if policy.top_p < 1.0:
        processors.append(TopPLogitsWarper(policy.top_p))
    if policy.min_p > 0.0:
        processors.append(MinPLogitsWarper(policy.min_p))
    if policy.typical_p < 1.0:
        processors.append(TypicalLogitsWarper(policy.typical_p))
    scores = processors(torch.from_numpy(prefix)[None], logits.double())  # type: ignore[arg-type]
    return torch.softmax(scores, -1)[0].numpy()


POLICIES = [
    SamplingPolicy(temperature=0.7),
    SamplingPolicy(temperature=1.3, top_k=7),
    SamplingPolicy(top_k=1),
    SamplingPolicy(top_k=VOCAB),
    SamplingPolicy(temperature=0.8, top_p=0.95),
    SamplingPolicy(top_p=0.01),
    SamplingPolicy(top_p=0.999),
    SamplingPolicy(min_p=0.05),
    SamplingPolicy(min_p=1.0),
    SamplingPolicy(typical_p=0.6),
    SamplingPolicy(temperature=1.5, typical_p=0.95),
    SamplingPolicy(repetition_penalty=1.3),
    SamplingPolicy(repetition_penalty=0.8, temperature=0.9, top_k=20, top_p=0.9, min_p=0.02, typical_p=0.9),
]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_law_equals_that_of_transformers_warpers(policy: SamplingPolicy, scale: float) -> None:
    for seed in range(12):
        logits = random_logits(seed, scale=scale)
        ours = laws_of(policy, logits).row(-1).dense()
        np.testing.assert_allclose(ours, transformers_law(policy, logits, PREFIX), atol=2e-7, rtol=2e-6)
        assert ours.sum() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(
    "policy",
    [
        SamplingPolicy(temperature=0.8, top_p=0.95),
        SamplingPolicy(top_p=0.9999),
        SamplingPolicy(top_k=300, top_p=0.9),
        SamplingPolicy(min_p=0.001),
        SamplingPolicy(top_k=5000),
        SamplingPolicy(typical_p=0.9),
    ],
    ids=str,
)
def test_partial_sorting_decides_as_full_sorting_on_a_large_vocabulary(policy: SamplingPolicy) -> None:
    for seed, scale in ((0, 0.2), (1, 1.0), (2, 4.0)):
        logits = random_logits(seed, vocab=20_000, scale=scale)
        ours = laws_of(policy, logits).row(-1).dense()
        theirs = transformers_law(policy, logits, PREFIX)
        # A token exactly on a rule's edge may fall to either side by rounding.
        assert np.count_nonzero((ours > 0) != (theirs > 0)) <= 1
        np.testing.assert_allclose(ours, theirs, atol=2e-6)


def test_top_p_keeps_the_smallest_set_that_reaches_p_and_of_equals_the_lowest_ids() -> None:
    ties = torch.zeros(1, 10)
    assert np.flatnonzero(laws_of(SamplingPolicy(top_p=0.5), ties).row(-1).dense()).tolist() == [0, 1, 2, 3, 4]
    assert np.flatnonzero(laws_of(SamplingPolicy(top_p=0.51), ties).row(-1).dense()).tolist() == [0, 1, 2, 3, 4, 5]
    wide = torch.zeros(1, 9_000)
    assert np.flatnonzero(laws_of(SamplingPolicy(top_p=0.5), wide).row(-1).dense()).tolist() == list(range(4_500))


def test_top_k_keeps_every_tie_with_the_kth_value() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0, 0.0]])
    assert np.flatnonzero(laws_of(SamplingPolicy(top_k=2), logits).row(-1).dense()).tolist() == [1, 2, 3, 4]


def test_penalties_use_each_nodes_own_prefix() -> None:
    policy = SamplingPolicy(presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=1.5)
    tokens, parents = np.array([7, 3, 7, 8]), np.array([-1, 0, 1, -1])
    logits = random_logits(3, rows=5)
    laws = laws_of(policy, logits, tokens=tokens, parents=parents)
    for row, path in ((-1, []), (0, [7]), (1, [7, 3]), (2, [7, 3, 7]), (3, [8])):
        expected = logits[row + 1].double().clone()
        for token in {*PREFIX.tolist(), *path}:
            expected[token] = expected[token] / 1.5 if expected[token] > 0 else expected[token] * 1.5
        output = [*PREFIX[PROMPT_LEN:].tolist(), *path]
        for token in set(output):
            expected[token] -= 0.5 + 0.25 * output.count(token)
        np.testing.assert_allclose(laws.row(row).dense(), torch.softmax(expected, -1).numpy(), atol=1e-6)


def test_penalties_follow_a_growing_prefix() -> None:
    policy = SamplingPolicy(frequency_penalty=1.0)
    logits = torch.zeros(1, 6)
    processor = LawProcessor(policy, vocab_size=6, prompt_len=1, eos_ids=())
    for prefix in ([0], [0, 1], [0, 1, 1, 2]):
        law = processor.laws(logits, prefix=np.array(prefix), token_ids=NONE, parents=NONE).row(-1).dense()
        counts = np.bincount(prefix[1:], minlength=6)
        np.testing.assert_allclose(law, np.exp(-counts) / np.exp(-counts).sum(), atol=1e-7)


def test_bias_acts_before_penalties_and_bans_after_all() -> None:
    policy = SamplingPolicy(logit_bias={3: 50.0, 4: 2.0, 5: -100.0}, banned_ids=(3,), repetition_penalty=2.0)
    logits = torch.zeros(1, 8)
    law = laws_of(policy, logits, prefix=np.array([4]), prompt_len=1, eos=()).row(-1).dense()
    expected = np.array([1, 1, 1, 0, math.e, 0, 1, 1])
    np.testing.assert_allclose(law, expected / expected.sum(), atol=1e-7)


def test_allowed_ids_force_and_banned_ids_win_over_them() -> None:
    logits = random_logits(0)
    assert np.flatnonzero(laws_of(SamplingPolicy(allowed_ids=(11,)), logits).row(-1).dense()).tolist() == [11]
    both = SamplingPolicy(allowed_ids=(11, 12), banned_ids=(12,))
    assert np.flatnonzero(laws_of(both, logits).row(-1).dense()).tolist() == [11]


def test_end_tokens_are_banned_per_node_until_min_tokens_are_published() -> None:
    policy = SamplingPolicy(min_tokens=5, stop_ids=(6,))
    logits = torch.zeros(4, 8)
    # Three tokens are published; the anchor predicts the fourth, depth 1 the fifth, depth 2 the sixth.
    laws = laws_of(policy, logits, tokens=np.array([1, 1, 1]), parents=np.array([-1, 0, 1]))
    banned = [bool(laws.row(row).dense()[[2, 6]].max() == 0.0) for row in (-1, 0, 1, 2)]
    assert banned == [True, True, False, False]


def test_temperature_zero_is_a_point_on_the_lowest_of_equal_maxima() -> None:
    logits = torch.tensor([[0.0, 4.0, 4.0, 1.0]])
    laws = laws_of(SamplingPolicy(temperature=0.0), logits)
    assert laws.argmax(-1) == 1
    assert laws.row(-1).dense().tolist() == [0.0, 1.0, 0.0, 0.0]
    assert laws.probability(-1, 1) == 1.0


def test_greedy_token_is_taken_after_the_edits() -> None:
    logits = torch.tensor([[0.0, 4.0, 3.5, 1.0]])
    assert laws_of(SamplingPolicy(temperature=0.0, banned_ids=(1,)), logits, prompt_len=7).argmax(-1) == 2


@pytest.mark.parametrize(
    "policy", [SamplingPolicy(), SamplingPolicy(temperature=0.0), SamplingPolicy(top_p=0.9, banned_ids=(1,))], ids=str
)
def test_nan_logits_are_an_internal_error_that_names_the_row(policy: SamplingPolicy) -> None:
    logits = random_logits(0, rows=2)
    logits[1, 1] = torch.nan
    laws = laws_of(policy, logits, tokens=np.array([3]), parents=np.array([-1]))
    laws.argmax(-1)
    with pytest.raises(Internal, match="NaN in the logits of predictor row 0"):
        laws.row(0)


def test_tokens_at_plus_infinity_share_all_mass_and_minus_infinity_has_none() -> None:
    logits = torch.tensor([[torch.inf, 5.0, torch.inf, -torch.inf]])
    for policy in (SamplingPolicy(), SamplingPolicy(top_p=0.9), SamplingPolicy(temperature=0.3, min_p=0.1)):
        assert laws_of(policy, logits).row(-1).dense().tolist() == [0.5, 0.0, 0.5, 0.0]
    assert laws_of(SamplingPolicy(temperature=0.0), logits).argmax(-1) == 0
    below = torch.tensor([[0.0, -torch.inf, 0.0]])
    assert laws_of(SamplingPolicy(), below).row(-1).dense().tolist() == [0.5, 0.0, 0.5]
    assert laws_of(SamplingPolicy(top_k=3), below).row(-1).dense().tolist() == [0.5, 0.0, 0.5]


def test_a_row_without_tokens_is_a_typed_error() -> None:
    with pytest.raises(Internal, match="all logits of predictor row -1 are -inf"):
        laws_of(SamplingPolicy(), torch.full((1, 4), -torch.inf)).row(-1)
    masked = SamplingPolicy(allowed_ids=(2,), min_tokens=9)
    with pytest.raises(InvalidArgument, match="leave no token"):
        laws_of(masked, torch.zeros(1, 4)).row(-1)


def test_logits_of_another_shape_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="expected"):
        laws_of(SamplingPolicy(), torch.zeros(1, 4), tokens=np.array([1]), parents=np.array([-1]))


def test_logits_are_not_mutated() -> None:
    logits = random_logits(1)
    before = logits.clone()
    policy = SamplingPolicy(presence_penalty=1.0, banned_ids=(4,), logit_bias={3: 1.0}, top_p=0.9)
    laws_of(policy, logits).row(-1)
    assert torch.equal(logits, before)


def test_only_visited_rows_are_processed() -> None:
    logits = random_logits(1, rows=3)
    logits[2] = torch.nan
    laws = laws_of(SamplingPolicy(), logits, tokens=np.array([1, 2]), parents=np.array([-1, -1]))
    assert laws.row(-1) is laws.row(-1)
    assert laws.row(0).dense().sum() == pytest.approx(1.0)


def test_float32_laws_of_extreme_logits_stay_normalised() -> None:
    for scale in (1e-30, 1e3, 1e30):
        law = laws_of(SamplingPolicy(), random_logits(2, scale=scale)).row(-1).dense()
        assert law.sum() == pytest.approx(1.0, abs=1e-12)
        assert np.all(np.isfinite(law))


def test_logprobs_are_of_the_processed_law_by_default_and_of_the_raw_law_by_option() -> None:
    logits = random_logits(4)
    policy = SamplingPolicy(temperature=0.5, top_k=3, logprobs=2)
    processor = LawProcessor(policy, vocab_size=VOCAB, prompt_len=PROMPT_LEN, eos_ids=())
    laws = processor.laws(logits, prefix=PREFIX, token_ids=NONE, parents=NONE)
    token = laws.argmax(-1)
    got = processor.logprob(laws, -1, token)
    assert got.logprob == pytest.approx(math.log(laws.probability(-1, token)), abs=1e-9)
    assert got.top_ids[0] == token
    assert len(got.top_ids) == len(got.top_logprobs) == 2
    raw_policy = SamplingPolicy(temperature=0.5, top_k=3, logprobs=5, raw_logprobs=True, banned_ids=(token,))
    raw = LawProcessor(raw_policy, vocab_size=VOCAB, prompt_len=PROMPT_LEN, eos_ids=())
    raw_laws = raw.laws(logits, prefix=PREFIX, token_ids=NONE, parents=NONE)
    expected = torch.log_softmax(logits[0].double(), -1)
    got = raw.logprob(raw_laws, -1, 7)
    assert got.logprob == pytest.approx(float(expected[7]), abs=1e-6)
    assert got.top_ids == tuple(torch.topk(expected, 5).indices.tolist())


def test_greedy_logprobs_are_those_of_temperature_one() -> None:
    logits = random_logits(4)
    processor = LawProcessor(
        SamplingPolicy(temperature=0.0, logprobs=0), vocab_size=VOCAB, prompt_len=PROMPT_LEN, eos_ids=()
    )
    laws = processor.laws(logits, prefix=PREFIX, token_ids=NONE, parents=NONE)
    token = laws.argmax(-1)
    got = processor.logprob(laws, -1, token)
    assert got.logprob == pytest.approx(float(torch.log_softmax(logits[0].double(), -1)[token]), abs=1e-6)
    assert got.top_ids == ()


def test_draft_laws_are_drawn_at_the_requests_temperature_and_truncation() -> None:
    logits = random_logits(5)
    laws = laws_of(SamplingPolicy(temperature=0.6, top_k=9), logits)
    law = laws.draft_law(-1)
    assert int(law.weights.sum()) == 1 << 32
    np.testing.assert_allclose(law.dense(VOCAB), laws.row(-1).dense(), atol=2e-9)
    cut = laws_of(SamplingPolicy(), logits).draft_law(-1, support=5)
    assert cut.token_ids.tolist() == sorted(torch.topk(logits[0], 5).indices.tolist())
