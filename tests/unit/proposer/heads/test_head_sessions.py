"""What holds for the drafting state of every family."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from contracts.errors import InvalidArgument, Unavailable
from proposer.heads.families import Frozen, head_of, network_of
from proposer.heads.package import HeadPackage
from tests.unit.proposer.heads.tiny_heads import (
    FAMILIES,
    VOCABULARY,
    Rows,
    frozen,
    head,
    manifest_of,
    network,
    prefix_of,
)

WITH_ROWS = ("hydra++", "clover", "eagle", "eagle3")


def _fresh(drafting, prefix):
    session = drafting.open(128)
    logits = session.follow(prefix, Rows(prefix))
    session.release()
    return logits


@pytest.mark.parametrize("family", FAMILIES)
def test_state_after_any_round_is_that_of_a_fresh_session(family: str) -> None:
    """Rejected drafts, full acceptance, no acceptance, and a prefix that goes another way leave nothing behind."""
    _, drafting = head(family)
    base = prefix_of(20)
    session = drafting.open(128)
    prefix = base
    for accepted in ([], [4, 9], [30, 30, 41], [7]):
        session.follow(prefix, Rows(prefix))
        session.stage([4, 30], [-1, -1], [1, 1])
        session.stage([9, 30], [0, 1], [2, 2])
        session.settle()
        prefix = np.concatenate([prefix, np.array([*accepted, 33])])
        assert torch.allclose(session.follow(prefix, Rows(prefix)), _fresh(drafting, prefix), atol=1e-5)
        session.settle()
    other = np.concatenate([base[:12], prefix_of(5, seed=9)])
    assert torch.allclose(session.follow(other, Rows(other)), _fresh(drafting, other), atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_siblings_do_not_see_each_other(family: str) -> None:
    _, drafting = head(family)
    prefix = prefix_of(9)
    session = drafting.open(64)

    def children(tokens, parents, depths):
        session.follow(prefix, Rows(prefix))
        rows = session.stage(tokens, parents, depths)
        session.settle()
        return rows

    together = children([4, 30, 9], [-1, -1, -1], [1, 1, 1])
    for index, token in enumerate((4, 30, 9)):
        assert torch.allclose(together[index], children([token], [-1], [1])[0], atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_tree_levels_give_what_each_path_gives_alone(family: str) -> None:
    _, drafting = head(family)
    prefix = prefix_of(9)
    session = drafting.open(64)
    session.follow(prefix, Rows(prefix))
    session.stage([4, 30], [-1, -1], [1, 1])
    tree = session.stage([9, 11, 9], [0, 0, 1], [2, 2, 2])
    session.settle()
    for row, path in enumerate(([4, 9], [4, 11], [30, 9])):
        session.follow(prefix, Rows(prefix))
        session.stage(path[:1], [-1], [1])
        alone = session.stage(path[1:], [0], [2])[0]
        session.settle()
        assert torch.allclose(tree[row], alone, atol=1e-5)


@pytest.mark.parametrize("family", WITH_ROWS)
def test_only_missing_rows_are_asked_for(family: str) -> None:
    _, drafting = head(family)
    prefix = prefix_of(20)
    session, rows = drafting.open(128), Rows(prefix)
    session.follow(prefix, rows)
    assert rows.asked == [(0, 19)]
    grown = np.concatenate([prefix, prefix_of(3, seed=8)])
    rows = Rows(grown)
    session.follow(grown, rows)
    assert rows.asked == [(19, 22)]


@pytest.mark.parametrize("family", ["medusa", "hydra"])
def test_heads_over_one_row_ask_for_the_row_that_predicted_the_anchor(family: str) -> None:
    _, drafting = head(family)
    prefix = prefix_of(20)
    rows = Rows(prefix)
    drafting.open(128).follow(prefix, rows)
    assert rows.asked == [(18, 19)]


@pytest.mark.parametrize("family", FAMILIES)
def test_state_is_unchanged_when_rows_cannot_be_had(family: str) -> None:
    _, drafting = head(family)
    prefix = prefix_of(12)
    session = drafting.open(64)
    session.follow(prefix, Rows(prefix))
    session.settle()
    grown = np.concatenate([prefix, [4, 9]])
    rows = Rows(grown)
    rows.gone = True
    with pytest.raises(Unavailable):
        session.follow(grown, rows)
    rows.gone = False
    assert torch.allclose(session.follow(grown, rows), _fresh(drafting, grown), atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_single_token_is_no_prefix_to_draft_from(family: str) -> None:
    _, drafting = head(family)
    with pytest.raises(InvalidArgument, match="two tokens"):
        drafting.open(64).follow(prefix_of(1), Rows(prefix_of(1)))


@pytest.mark.parametrize("family", ["hydra++", "clover", "eagle", "eagle3"])
def test_rows_go_back_when_a_session_is_released(family: str) -> None:
    _, drafting = head(family)
    for _ in range(40):
        drafting.open(100).release()


def test_medusa_heads_do_not_see_drafted_tokens() -> None:
    _, drafting = head("medusa")
    session = drafting.open(64)
    session.follow(prefix_of(9), Rows(prefix_of(9)))
    first, second = session.stage([4, 30], [-1, -1], [1, 1])
    assert torch.equal(first, second)


@pytest.mark.parametrize("family", ["hydra", "hydra++", "clover", "eagle", "eagle3"])
def test_dependent_heads_see_drafted_tokens(family: str) -> None:
    _, drafting = head(family)
    session = drafting.open(64)
    session.follow(prefix_of(9), Rows(prefix_of(9)))
    first, second = session.stage([4, 30], [-1, -1], [1, 1])
    assert not torch.allclose(first, second, atol=1e-2)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_cover_the_draft_vocabulary(family: str) -> None:
    _, drafting = head(family)
    session = drafting.open(64)
    logits = session.follow(prefix_of(9), Rows(prefix_of(9)))
    assert logits.shape == (len(VOCABULARY),)
    assert session.stage([4], [-1], [1]).shape == (1, len(VOCABULARY))


@pytest.mark.parametrize("family", FAMILIES)
def test_heads_draft_over_a_bfloat16_target(family: str) -> None:
    """The target's rows come in its own dtype; a head computes in float32 all the same."""
    whole = frozen()
    halved = Frozen(whole.config, whole.embedding.bfloat16(), whole.head.bfloat16())
    tensors = {name: value.detach().clone() for name, value in network(family).named_parameters()}
    loaded = HeadPackage(manifest_of(family), VOCABULARY, tensors, {})
    drafting = head_of(loaded, network_of(manifest_of(family), halved, VOCABULARY), kv_budget_tokens=256)
    session = drafting.open(64)
    prefix = prefix_of(9)
    first = session.follow(prefix, Rows(prefix))
    assert torch.isfinite(first).all()
    _, exact = head(family)
    assert torch.allclose(first, exact.open(64).follow(prefix, Rows(prefix)), atol=0.15, rtol=0.1)


def test_eagle_runs_tokens_that_it_would_not_draft() -> None:
    """A merged tree may hold another source's tokens: alone or beside its own they give the same rows."""
    _, drafting = head("eagle")
    session = drafting.open(64)
    prefix = prefix_of(9)
    session.follow(prefix, Rows(prefix))
    mixed = session.stage([4, 2], [-1, -1], [1, 1])
    session.settle()
    session.follow(prefix, Rows(prefix))
    assert VOCABULARY.to_draft(np.array([2]))[0] < 0
    assert torch.allclose(session.stage([4], [-1], [1])[0], mixed[0], atol=1e-5)
