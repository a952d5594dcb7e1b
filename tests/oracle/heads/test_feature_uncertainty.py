"""Module 16's feature uncertainty: the next feature depends on the token taken, so a head that does not see it must err."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from proposer.training.corpus import Example, prepare
from proposer.training.generate import Conversation
from proposer.training.gradients import Learning
from proposer.training.loop import Recipe, Trainer, evaluate
from proposer.training.recipes import recipe_of
from tests.unit.proposer.heads.tiny_heads import HIDDEN, VOCABULARY, Rows, frozen, head, network, prefix_of

# After one and the same row either token may be taken, and each has a continuation of its own.
BRANCHES = ((4, 9), (30, 20))


def branches() -> list[Example]:
    """Two conversations that are one up to the row that predicts their third token; the fourth is the only label."""
    shared = torch.randn(2, HIDDEN, generator=torch.Generator().manual_seed(16)).numpy()
    made = []
    for taken, follows in BRANCHES:
        rows = np.concatenate([shared, frozen().head[follows][None].numpy()]).astype(np.float16)
        tokens = np.array([3, 7, taken, follows], np.int32)
        made.append(Conversation(f"takes {taken}", "qa", tokens, 3, {"final_norm": rows}))
    return prepare(made, VOCABULARY, frozen().rows(VOCABULARY))


def fitted(family: str) -> float:
    """How often the family's first draft is right on the branches it was fitted to."""
    made, recipe = network(family), recipe_of(family, depth=1)
    run = Recipe(token_budget=200, batch_tokens=2, learning_rate=1e-2, report_every=50)
    learning = Learning(made, partial(recipe.scores, made), VOCABULARY)
    Trainer(learning, run).run(branches(), [], lambda figures, budget: None)
    return evaluate(learning.objective, branches(), VOCABULARY)[0]


def test_no_fit_of_a_token_blind_head_is_right_on_both_branches_and_a_fused_one_is() -> None:
    """One row, two continuations: whatever Medusa learns, its one answer is right on half of them."""
    assert fitted("medusa") == 0.5
    assert fitted("eagle") == 1.0


def test_the_heads_fused_row_is_exact_on_both_branches() -> None:
    """Feature and token together: the least-squares fit of the token's matrix hits both features exactly."""
    generator = torch.Generator().manual_seed(16)
    feature, targets = torch.randn(HIDDEN, generator=generator), torch.randn(2, HIDDEN, generator=generator)
    tokens = torch.tensor([taken for taken, _ in BRANCHES])
    made = network("eagle")
    with torch.no_grad():
        half = made.drafted(feature[None])
        embedded = made.fused(torch.zeros(2, HIDDEN), tokens)
        inputs = torch.linalg.lstsq(made.token, embedded.T).solution.T
        made.token.copy_((torch.linalg.pinv(inputs) @ (targets - half)).T)
        predicted = made.fused(half.expand(2, -1), tokens)
    assert torch.allclose(predicted, targets, atol=1e-3)


@pytest.mark.parametrize(("family", "sees"), [("medusa", False), ("hydra", True), ("clover", True), ("eagle", True)])
def test_a_sessions_first_draft_depends_on_the_anchor_unless_the_head_is_medusas(family: str, sees: bool) -> None:
    """Two prefixes that differ in the anchor alone, whose row the target has not computed yet."""
    one = prefix_of(8)
    other = one.copy()
    other[-1] = 2 + (other[-1] - 1) % 40
    drafts = [head(family)[1].open(16).follow(prefix, Rows(prefix)) for prefix in (one, other)]
    assert torch.equal(*drafts) is not sees
