"""models.law_scores: the compiled sweeps and the torch operations give what plain numpy gives, and the same laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from contracts.randomness import CoinChooser
from contracts.sampling import SamplingPolicy
from models import law_scores
from models.law_kernels import SMALLEST
from models.law_scores import scores_of
from models.laws import LawProcessor

# Large enough for groups, and no multiple of their depth.
VOCAB = 5003


@pytest.fixture(params=["host", "torch"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways through every sweep, the device's on tensors of the host."""
    if request.param == "torch":
        use_torch(monkeypatch)
    return str(request.param)


def use_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(law_scores, "on_host", lambda scores: False)


def logits_of(seed: int, scale: float, vocab: int = VOCAB) -> torch.Tensor:
    out = torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * scale
    out[::7] = -torch.inf
    return out


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("temperature", [1e-3, 0.7, 1.0, 3.0])
@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0, 1e30])
def test_sums_and_probabilities_are_those_of_exact_summation(scale: float, temperature: float) -> None:
    logits = logits_of(1, scale)
    top = float(logits.amax())
    z = [max((float(x) - top) / temperature, SMALLEST) for x in logits.tolist()]
    scores = scores_of(logits)
    assert scores.top == top
    total, weighted = scores.exp_sums(temperature)
    assert total == pytest.approx(math.fsum(map(math.exp, z)), rel=1e-13)
    assert weighted == pytest.approx(math.fsum(x * math.exp(x) for x in z), rel=1e-12, abs=1e-290)
    low, high = scores.exp_total_within(temperature)
    assert total * (1 - 1e-4) - 1e-30 < low <= total * (1 + 1e-13)
    assert total * (1 - 1e-13) <= high < total * (1 + 1e-4)
    p = scores.normalised(temperature, total).host()
    np.testing.assert_allclose(p, [math.exp(x) / total if x > SMALLEST else 0.0 for x in z], rtol=1e-12)
    assert math.fsum(p.tolist()) == pytest.approx(1.0, abs=1e-13)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_floors_between_two_floats_are_compared_exactly(dtype: torch.dtype) -> None:
    scores = logits_of(2, 2.0).to(dtype)
    exact = scores.double().numpy()
    edge = float(scores[5])
    for floor in (edge, np.nextafter(edge, 9.0), np.nextafter(edge, -9.0), -math.inf, 1e300, 0.1):
        np.testing.assert_array_equal(scores_of(scores).at_least(float(floor)), np.flatnonzero(exact >= floor))


POLICIES = [
    SamplingPolicy(temperature=0.8),
    SamplingPolicy(temperature=0.8, top_p=0.95),
    SamplingPolicy(top_p=0.9999, min_p=1e-4),
    SamplingPolicy(top_k=50, top_p=0.9),
    SamplingPolicy(min_p=0.02),
    SamplingPolicy(typical_p=0.7, banned_ids=(3,)),
    SamplingPolicy(temperature=0.0),
    SamplingPolicy(temperature=0.0, banned_ids=(3,)),
]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_host_and_torch_paths_give_the_same_laws_and_samples(
    policy: SamplingPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, parents = np.array([4, 9]), np.array([-1, 0])
    logits = torch.stack([logits_of(seed, 1.0 + seed) for seed in range(3)])

    def found() -> list[tuple[np.ndarray, float, list[int]]]:
        processor = LawProcessor(policy, vocab_size=VOCAB, prompt_len=1, eos_ids=())
        made = processor.laws(logits, prefix=np.array([0, 1]), token_ids=tokens, parents=parents)
        return [
            (
                made.row(row).dense(),
                made.row(row).entropy(),
                [made.argmax(row), *(made.sample(row, position, CoinChooser(1, 2)) for position in range(20))],
            )
            for row in (-1, 0, 1)
        ]

    host = found()
    use_torch(monkeypatch)
    for one, two in zip(host, found(), strict=True):
        np.testing.assert_allclose(one[0], two[0], rtol=1e-12, atol=1e-300)
        assert one[1] == pytest.approx(two[1], abs=1e-12)
        assert one[2] == two[2]


def test_single_tokens_and_the_whole_row_of_a_dense_law_agree() -> None:
    logits = logits_of(3, 2.0)[None]
    law = LawProcessor(SamplingPolicy(temperature=0.6), vocab_size=VOCAB, prompt_len=1, eos_ids=()).laws(
        logits, prefix=np.array([0]), token_ids=np.zeros(0, dtype=np.int64), parents=np.zeros(0, dtype=np.int64)
    )
    ids = np.arange(0, VOCAB, 11)
    np.testing.assert_allclose(law.row(-1).at(ids), law.row(-1).dense()[ids], rtol=1e-13)
    p = law.row(-1).dense()
    assert law.row(-1).entropy() == pytest.approx(-math.fsum((p[p > 0] * np.log(p[p > 0])).tolist()), rel=1e-12)
