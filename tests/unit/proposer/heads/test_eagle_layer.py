"""The compiled layer beside the network that was trained: equal up to rounding, and safe against what rounds do to it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from contracts.errors import InvalidArgument, ResourceExhausted
from models.cpu.draft_layer import DraftLayer
from proposer.heads.eagle import EagleNetwork, Segment, unroll
from tests.unit.proposer.heads.tiny_heads import HIDDEN, VOCABULARY, Rows, head, hidden_rows, prefix_of


def _layer(drafting: object) -> DraftLayer:
    return drafting._layer  # type: ignore[attr-defined]


@pytest.mark.parametrize("family", ["eagle", "eagle3"])
def test_logits_of_each_step_are_the_training_networks(family: str) -> None:
    """Step k of training-time test is what drafting k + 1 deep along the text computes (proposer/heads/eagle.py)."""
    network, drafting = head(family)
    assert isinstance(network, EagleNetwork)
    text = np.concatenate([prefix_of(12), VOCABULARY.ids[[4, 7, 2, 9]]])
    with torch.no_grad():
        halves = network.real({tap: rows for tap, rows in hidden_rows(text).items() if tap in drafting.taps})
        features = unroll(network, Segment(halves, torch.from_numpy(text), 10), 3)
        wanted = [network.logits(rows) for rows in features]
    session = drafting.open(64)
    prefix = text[:12]
    # Fused row 10, the first of `unroll`, is the last of a prefix of 12 tokens.
    assert torch.allclose(session.follow(prefix, Rows(prefix)), wanted[0][0], atol=1e-4)
    for step in (1, 2):
        drafted = session.stage([int(text[11 + step])], [step - 2], [step])
        assert torch.allclose(drafted[0], wanted[step][0], atol=1e-4)


def test_rounds_are_deterministic_for_any_number_of_threads() -> None:
    _, one = head("eagle3")
    _, other = head("eagle3")
    _layer(other)._threads = 1
    prefix = prefix_of(70)
    grown = [
        drafting.open(128).grow(prefix, Rows(prefix), width=3, depth=4, floor=0.0) for drafting in (one, one, other)
    ]
    assert grown[0] == grown[1] == grown[2]


def test_growth_leaves_the_rows_of_the_prefix_and_no_others() -> None:
    _, drafting = head("eagle3")
    session = drafting.open(128)
    for length, seed in ((9, 3), (14, 3), (60, 3), (30, 4), (31, 4)):
        prefix = prefix_of(length, seed=seed)
        grown = session.grow(prefix, Rows(prefix), width=2, depth=3, floor=0.0)
        assert session.rows == length - 1
        assert grown == drafting.open(128).grow(prefix, Rows(prefix), width=2, depth=3, floor=0.0)


def test_a_tree_of_one_level_and_one_that_nothing_is_grown_from() -> None:
    _, drafting = head("eagle3")
    prefix = prefix_of(9)
    session = drafting.open(64)
    flat = session.grow(prefix, Rows(prefix), width=3, depth=1, floor=0.0)
    assert list(flat.parents) == [-1, -1, -1]
    assert session.grow(prefix, Rows(prefix), width=3, depth=4, floor=0.999) == flat


def test_ranks_are_the_logits_order_and_log_softmax_with_ties_to_the_lower_index() -> None:
    network, drafting = head("eagle3")
    assert isinstance(network, EagleNetwork)
    prefix = prefix_of(9)
    logits = drafting.open(64).follow(prefix, Rows(prefix))
    wanted = torch.log_softmax(logits.double(), dim=0).numpy()
    order = np.argsort(-wanted, kind="stable")[:5]
    grown = drafting.open(64).grow(prefix, Rows(prefix), width=5, depth=1, floor=0.0)
    assert list(grown.tokens) == VOCABULARY.ids[order].tolist()
    assert np.allclose(grown.values, wanted[order], atol=1e-5)


def test_rows_without_room_and_wrong_parents_are_refused_and_nothing_is_staged() -> None:
    _, drafting = head("eagle3")
    layer = _layer(drafting)
    slot = layer.allocate(4)
    fused = np.ones((3, 4 * HIDDEN), np.float32)
    layer.run(slot, fused, np.array([-1, 0, 1]))
    with pytest.raises(ResourceExhausted, match="room for 4"):
        layer.run(slot, fused, np.array([-1, 0, 1]))
    for parents in ([3], [-2]):
        with pytest.raises(InvalidArgument, match="parent"):
            layer.run(slot, fused[:1], np.array(parents))
    with pytest.raises(InvalidArgument, match="staged"):
        layer.grow(slot, fused[:1], width=1, depth=1, least=-np.inf)
    layer.rollback(slot)
    with pytest.raises(ResourceExhausted):
        layer.grow(slot, fused, width=2, depth=2, least=-np.inf)
    far = layer.allocate(400)
    with pytest.raises(InvalidArgument, match="context of 256"):
        layer.run(far, np.ones((257, 4 * HIDDEN), np.float32), np.arange(-1, 256))
