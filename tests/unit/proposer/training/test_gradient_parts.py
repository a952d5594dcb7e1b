"""A step split over several learners is the step of one."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from proposer.training.gradients import LocalGradients, Measured, PartLearner, parts_of
from proposer.training.recipes import recipe_of
from tests.unit.proposer.heads.tiny_heads import FAMILIES, VOCABULARY, network
from tests.unit.proposer.training.tiny_corpus import examples


@pytest.mark.parametrize("family", FAMILIES)
def test_parts_of_a_step_add_up_to_its_gradient(family: str) -> None:
    """Three parts of six conversations of unequal lengths."""
    recipe, every = recipe_of(family, depth=3), examples(lengths=(12, 9, 20, 5, 16, 7))
    whole = network(family)
    expected = LocalGradients(partial(recipe.scores, whole), VOCABULARY)(every)
    parts = parts_of(every, 3)
    assert sorted(len(one.tokens) for part in parts for one in part) == [5, 7, 9, 12, 16, 20]
    learners = []
    for _ in parts:
        made = network(family, seed=1)
        learners.append(PartLearner(made, partial(recipe.scores, made), VOCABULARY))
    parameters = [value.detach() for value in whole.parameters()]
    measured = Measured.joined(
        [learner.forward(parameters, part) for learner, part in zip(learners, parts, strict=True)]
    )
    assert measured.hits == expected.hits
    assert measured.rows == expected.rows
    assert measured.loss == pytest.approx(expected.loss, rel=1e-5)
    gradients = [learner.backward(measured.rows) for learner in learners]
    for index, value in enumerate(whole.parameters()):
        assert value.grad is not None
        assert torch.allclose(sum(one[index] for one in gradients), value.grad, rtol=1e-3, atol=1e-6)


def test_no_part_is_empty() -> None:
    assert [len(part) for part in parts_of(examples(), 8)] == [1, 1, 1]
