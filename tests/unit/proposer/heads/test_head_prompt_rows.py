"""Heads that read the end of a prompt only: what they draft is what they would draft if the text began there."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from contracts.errors import InvalidArgument
from proposer.heads.head import GrowingSession, HeadSession, Int64Array
from proposer.heads.source import HeadSettings
from tests.unit.proposer.heads.test_head_source import Verifier, offer, opened
from tests.unit.proposer.heads.tiny_heads import FAMILIES, Rows, head, prefix_of

BASE = 40


class FromBase:
    """The rows of a text from `BASE` on, as those of a text that begins there."""

    base = 0

    def __init__(self, tokens: Int64Array) -> None:
        self.whole = Rows(tokens)

    def rows(self, start: int, stop: int) -> Mapping[str, Tensor]:
        return self.whole.rows(start + BASE, stop + BASE)


def drafted(session: HeadSession, prefix: Int64Array, states: Rows | FromBase) -> Tensor:
    """Logits of a round: behind the anchor, behind two children, behind a grandchild."""
    first = session.follow(prefix, states)
    rest = [session.stage([4, 7], [-1, -1], [1, 1]), session.stage([9], [1], [2])]
    session.settle()
    return torch.cat([first[None], *rest])


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_before_the_base_are_never_read_and_drafts_are_those_of_the_text_cut_there(family: str) -> None:
    """Rotations are relative, so a text cut at the base gives the same logits up to rounding."""
    _, drafting = head(family)
    session = drafting.open(128)
    # Rounds that go on, and one of another text behind the base: nothing of it is left.
    for length, seed in ((60, 3), (62, 3), (70, 4), (63, 3)):
        prefix = prefix_of(length, seed=seed)
        states = Rows(prefix, BASE)
        got = drafted(session, prefix, states)
        assert all(start >= BASE for start, _ in states.asked)
        wanted = drafted(drafting.open(128), prefix[BASE:], FromBase(prefix))
        assert torch.allclose(got, wanted, atol=1e-4)


@pytest.mark.parametrize("family", ["eagle", "eagle3"])
def test_trees_by_value_are_those_of_the_text_cut_at_the_base(family: str) -> None:
    _, drafting = head(family)
    session = drafting.open(128)
    assert isinstance(session, GrowingSession)
    for length, ahead in ((60, 50), (61, 61), (90, 70)):
        prefix = prefix_of(length)
        session.catch_up(prefix[:ahead], Rows(prefix[:ahead], BASE))
        got = session.grow(prefix, Rows(prefix, BASE), width=3, depth=3, floor=0.0)
        fresh = drafting.open(128)
        assert isinstance(fresh, GrowingSession)
        wanted = fresh.grow(prefix[BASE:], FromBase(prefix), width=3, depth=3, floor=0.0)
        assert (list(got.tokens), list(got.parents)) == (list(wanted.tokens), list(wanted.parents))
        assert np.allclose(got.values, wanted.values, atol=1e-4)


@pytest.mark.parametrize("family", ["hydra++", "clover", "eagle3"])
def test_another_base_begins_anew(family: str) -> None:
    _, drafting = head(family)
    session, prefix = drafting.open(128), prefix_of(70)
    for base in (BASE, 0, 55, 12):
        got = drafted(session, prefix, Rows(prefix, base))
        assert torch.equal(got, drafted(drafting.open(128), prefix, Rows(prefix, base)))


def test_a_session_asks_no_room_for_rows_that_it_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    source, rounds, _ = opened("eagle3", HeadSettings(prompt_rows=16))
    rooms: list[int] = []
    whole = source._head.open

    def noted(room: int) -> HeadSession:
        rooms.append(room)
        return whole(room)

    monkeypatch.setattr(source._head, "open", noted)
    monkeypatch.setattr(Verifier, "states", lambda self, request: Rows(request.prefix, 183))
    assert offer(source, rounds.request("head", prefix_of(200).tolist(), node_budget=4, max_depth=2)).nodes
    assert rooms[0] < 183


def test_the_number_of_rows_is_declared_and_part_of_the_version() -> None:
    described = [opened("eagle3", HeadSettings(prompt_rows=rows))[0].describe() for rows in (0, 16, 64)]
    assert [one.prompt_rows for one in described] == [0, 16, 64]
    assert len({one.version for one in described}) == 3
    with pytest.raises(InvalidArgument, match=r"head\.prompt_rows|below 0"):
        HeadSettings(prompt_rows=-1)
