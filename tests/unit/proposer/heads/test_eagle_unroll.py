"""Training-time test computes what drafting computes, row by row."""

from __future__ import annotations

import pytest
import torch

from proposer.heads.eagle import Segment, unroll
from tests.unit.proposer.heads.tiny_heads import Rows, head, hidden_rows, prefix_of

STEPS = 4


@pytest.mark.parametrize("family", ["eagle", "eagle3"])
@pytest.mark.parametrize("first", [0, 5])
def test_each_step_is_a_draft_of_that_depth_over_the_text_itself(family: str, first: int) -> None:
    """Step k's row i must be the head's state after drafting tokens i - k + 2 .. i + 1 from the prefix up to i - k + 1."""
    network, drafting = head(family)
    tokens = prefix_of(14)
    with torch.no_grad():
        hidden = hidden_rows(tokens[:-1])
        segment = Segment(network.real(hidden), torch.from_numpy(tokens), first)
        outputs = unroll(network, segment, STEPS)
    last = len(tokens) - 2
    session = drafting.open(64)
    for step, rows in enumerate(outputs):
        assert len(rows) == last - first - step
        for number, row in enumerate(range(first + step, last)):
            prefix = tokens[: row - step + 2]
            logits = session.follow(prefix, Rows(prefix))
            for drafted in range(step):
                token = int(tokens[row - step + 2 + drafted])
                logits = session.stage([token], [drafted - 1], [drafted + 1])[0]
            session.settle()
            with torch.no_grad():
                expected = network.logits(rows[number : number + 1])[0]
            assert torch.allclose(logits, expected, atol=1e-4)


def test_a_segment_too_short_for_a_step_has_fewer_steps() -> None:
    network, _ = head("eagle")
    tokens = prefix_of(4)
    segment = Segment(network.real(hidden_rows(tokens[:-1])), torch.from_numpy(tokens), 0)
    assert [len(rows) for rows in unroll(network, segment, STEPS)] == [2, 1]


def test_labels_of_step_rows_are_two_tokens_on() -> None:
    """Changing the label token itself must not change the row that predicts it; changing the one before must."""
    network, _ = head("eagle")
    tokens = prefix_of(10)

    def rows(changed: int) -> torch.Tensor:
        other = tokens.copy()
        other[changed] = (other[changed] + 1) % 50
        with torch.no_grad():
            # The last token has no row of its own, so features stop one short.
            halves = network.real(hidden_rows(other[:-1]))
            return unroll(network, Segment(halves, torch.from_numpy(other), 0), 1)[0]

    original = unroll(network, Segment(network.real(hidden_rows(tokens[:-1])), torch.from_numpy(tokens), 0), 1)[0]
    for row in range(len(tokens) - 2):
        assert torch.allclose(rows(row + 2)[row], original[row], atol=1e-5)
        assert not torch.allclose(rows(row + 1)[row], original[row], atol=1e-3)
