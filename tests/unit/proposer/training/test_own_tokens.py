"""Labels outside the draft vocabulary that a conversation's own text has before them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from contracts.errors import InvalidArgument
from proposer.training.corpus import Example, pack, prepare
from proposer.training.eagle import EagleObjective
from proposer.training.generate import Conversation
from proposer.training.recipes import recipe_of
from tests.unit.proposer.heads.tiny_heads import VOCABULARY, frozen, hidden_rows, network

OUTSIDE = [token for token in range(VOCABULARY.target_size) if token not in set(VOCABULARY.ids.tolist())]
INSIDE = VOCABULARY.ids.tolist()
HEAD = frozen().head


def conversation(name: str, tokens: list[int], answer_start: int = 3) -> Conversation:
    rows = hidden_rows(np.array(tokens[:-1]))
    hidden = {tap: value.numpy().astype(np.float16) for tap, value in rows.items()}
    return Conversation(name, "qa", np.array(tokens, np.int32), answer_start, hidden)


# The first outside token comes back, the second stands once, the third is another conversation's.
TEXTS = (
    conversation("a", [INSIDE[0], OUTSIDE[0], INSIDE[1], INSIDE[2], OUTSIDE[0], OUTSIDE[1], INSIDE[3], INSIDE[0]]),
    conversation("b", [INSIDE[4], INSIDE[5], OUTSIDE[2], INSIDE[6], OUTSIDE[0], OUTSIDE[2], INSIDE[7], INSIDE[1]]),
)


def made(*texts: Conversation, own: bool = True) -> list[Example]:
    return prepare(texts, VOCABULARY, frozen().rows(VOCABULARY), own_head=HEAD if own else None)


def test_a_token_outside_the_vocabulary_is_a_label_once_its_own_text_has_it() -> None:
    size = len(VOCABULARY)
    packed = pack(made(*TEXTS), VOCABULARY)
    assert packed.own.ids.tolist() == [OUTSIDE[0], OUTSIDE[1], OUTSIDE[2], OUTSIDE[0]]
    assert packed.labels[:8].tolist()[1:6:3] == [-1, size]
    # New in its text, or of the other conversation only: nothing that could have been drafted.
    assert packed.labels[5].item() == -1
    assert packed.labels[8 + 2].item() == packed.labels[8 + 4].item() == -1
    assert packed.labels[8 + 5].item() == size + 2


def test_the_teachers_law_is_over_the_tokens_that_can_be_drafted_there() -> None:
    packed = pack(made(*TEXTS), VOCABULARY)
    rows = torch.from_numpy(VOCABULARY.ids)
    for (start, stop), one in zip(packed.bounds, TEXTS, strict=True):
        for row in range(start + one.answer_start - 1, stop - 1):
            before = one.tokens[: row + 1 - start].tolist()
            own = [
                index for index, token in enumerate(packed.own.ids.tolist()) if packed.own.segments[index] == start // 8
            ]
            seen = [index for index in own if int(packed.own.ids[index]) in before]
            choices = torch.cat([rows, packed.own.ids[torch.tensor(seen, dtype=torch.int64)]])
            numbers = [*range(len(rows)), *(len(rows) + index for index in seen)]
            law = torch.softmax(HEAD[choices].float() @ packed.hidden["final_norm"][row], dim=0)
            best = int(law.argmax())
            assert int(packed.teacher_ids[row, 0]) == numbers[best]
            assert float(packed.teacher_probs[row, 0]) == pytest.approx(float(law[best]), abs=2e-3)


def test_a_conversations_loss_does_not_depend_on_those_packed_beside_it() -> None:
    head = network("eagle3")
    objective = EagleObjective(steps=2)
    alone = [objective.scores(head, pack([one], VOCABULARY)) for one in made(*TEXTS)]
    together = objective.scores(head, pack(made(*TEXTS), VOCABULARY))
    for depth, both in enumerate(together):
        parts = [scores[depth] for scores in alone]
        assert both.rows == sum(part.rows for part in parts)
        assert both.hits == sum(part.hits for part in parts)
        mean = sum(part.loss.item() * part.rows for part in parts) / both.rows
        assert both.loss.item() == pytest.approx(mean, rel=1e-4)


def test_the_loss_of_such_labels_reaches_the_head() -> None:
    head = network("eagle3")
    text = conversation("c", [INSIDE[0], OUTSIDE[0], INSIDE[1], OUTSIDE[0], OUTSIDE[0], OUTSIDE[0]])
    for own in (True, False):
        head.zero_grad(set_to_none=True)
        (score,) = EagleObjective(steps=1).scores(head, pack(made(text, own=own), VOCABULARY))
        score.loss.backward()
        reached = any(one.grad is not None and bool(one.grad.any()) for one in head.parameters())
        assert reached == own


def test_only_families_whose_trees_draft_own_tokens_are_trained_on_them() -> None:
    assert recipe_of("eagle3", own=True).own
    assert not recipe_of("eagle3").own
    with pytest.raises(InvalidArgument, match="own"):
        recipe_of("hydra", own=True)
