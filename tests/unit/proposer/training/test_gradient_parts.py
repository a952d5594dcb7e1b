"""A step split over several learners is the step of one, whatever is trained."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from proposer.heads.families import Frozen
from proposer.training.corpus import Example, pack
from proposer.training.draft import DraftNetwork
from proposer.training.eagle import EagleObjective
from proposer.training.gradients import Learning, LocalGradients, Measured, PartLearner, added, parts_of
from proposer.training.medusa2 import Medusa2Network, Medusa2Recipe
from proposer.training.orders import DraftOrder, HeadOrder, Medusa2Order
from proposer.training.recipes import recipe_of
from tests.unit.proposer.heads.tiny_heads import CONFIG, FAMILIES, VOCABULARY, frozen, manifest_of
from tests.unit.proposer.training.tiny_corpus import examples
from tests.unit.proposer.training.tiny_weights import target_weights

WARM_UP = 3


def loud(learning: Learning) -> Learning:
    """With random weights: zeros, which some begin with, let no gradient through."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in learning.network.parameters():
            scale = value.shape[-1] ** -0.5 if value.dim() > 1 else 0.3
            value.copy_(torch.randn(value.shape, generator=generator) * scale + (value.dim() == 1))
    return learning


def head(family: str, noise: float = 0.0) -> Callable[[], Learning]:
    return HeadOrder(manifest_of(family), frozen(), VOCABULARY, recipe_of(family, depth=3, noise=noise)).build


def medusa2() -> Learning:
    recipe = Medusa2Recipe(warm_up=WARM_UP)
    return Medusa2Order(manifest_of("medusa"), frozen(), target_weights(), VOCABULARY, 2, recipe).build()


def draft() -> Learning:
    weights = target_weights()
    target = Frozen.of(CONFIG, weights)
    return DraftOrder(CONFIG, weights, (0,), target.rows(VOCABULARY), VOCABULARY).build()


KINDS: dict[str, tuple[Callable[[], Learning], int]] = {
    **{family: (head(family), 0) for family in FAMILIES},
    "eagle3 with noise": (head("eagle3", noise=0.3), 7),
    "medusa2, heads alone": (medusa2, WARM_UP - 1),
    "medusa2, both": (medusa2, WARM_UP),
    "draft": (draft, 0),
}


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_a_step_add_up_to_its_gradient(kind: str) -> None:
    """Three parts of six conversations of unequal lengths; what a step does not reach, no part does."""
    build, step = KINDS[kind]
    every, whole = examples(lengths=(12, 9, 20, 5, 16, 7)), loud(build())
    expected = LocalGradients(whole)(every, step)
    parts = parts_of(every, 3)
    assert sorted(len(one.tokens) for part in parts for one in part) == [5, 7, 9, 12, 16, 20]
    learners = [PartLearner(build()) for _ in parts]
    parameters = [value.detach() for value in whole.network.parameters()]
    for learner in learners:
        # Not the step's own: they must come with it.
        learner.forward([value + 1.0 for value in parameters], parts[0], 0)
    measured = Measured.joined(
        [learner.forward(parameters, part, step) for learner, part in zip(learners, parts, strict=True)]
    )
    assert measured.hits == expected.hits
    assert measured.rows == expected.rows
    assert measured.loss == pytest.approx(expected.loss, rel=1e-5)
    gradients = added([learner.backward(measured.rows) for learner in learners])
    reached = 0
    for value, gradient in zip(whole.network.parameters(), gradients, strict=True):
        assert (gradient is None) == (value.grad is None)
        if gradient is not None and value.grad is not None:
            reached += 1
            assert torch.allclose(gradient, value.grad, rtol=1e-3, atol=1e-6)
    assert reached
    if kind == "medusa2, heads alone":
        assert isinstance(whole.network, Medusa2Network)
        assert all(value.grad is None for value in whole.network.backbone.parameters())
    elif isinstance(whole.network, DraftNetwork):
        assert reached == len(gradients)


def test_noise_of_a_conversation_is_its_own_and_changes_with_the_step() -> None:
    """So that neither a part of a step nor a later epoch sees other noise than one process, or the same again."""
    build, _ = KINDS["eagle3 with noise"]
    learning, (first, *others) = loud(build()), examples(lengths=(12, 9, 20))

    def loss(step: int) -> float:
        return LocalGradients(learning)([first], step).loss

    def beside(others: list[Example]) -> torch.Tensor:
        batch = pack([first, *others], VOCABULARY, step=4)
        return EagleObjective(noise=0.3).noisy(batch)["final_norm"][: len(first.tokens)]

    assert loss(4) == loss(4) != loss(5)
    assert torch.equal(beside([]), beside(others))


def test_no_part_is_empty() -> None:
    assert [len(part) for part in parts_of(examples(), 8)] == [1, 1, 1]
