"""The published prefix: its ids and their digest, however they come."""

import struct
from hashlib import sha256

import numpy as np
import pytest

from contracts.frontier import Frontier


def of(ids: list[int]) -> str:
    return sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()


@pytest.mark.parametrize("nothing", [(), [], np.zeros(0, np.int64)])
def test_a_frontier_begins_empty_whatever_says_so(nothing: object) -> None:
    frontier = Frontier(nothing)  # type: ignore[arg-type]
    assert len(frontier) == 0
    assert frontier.digest == of([])
    frontier.publish((1, 2**32 - 1))
    assert frontier.tokens.tolist() == [1, 2**32 - 1]


def test_tuples_and_arrays_publish_the_same() -> None:
    ids = [7 * n % 1000 for n in range(700)]
    one, other = Frontier(), Frontier(np.array(ids))
    for start in range(0, len(ids), 3):
        one.publish(tuple(ids[start : start + 3]))
    assert one.tokens.tolist() == other.tokens.tolist() == ids
    assert one.digest == other.digest == of(ids)


def test_a_view_stays_as_it_is_when_more_is_published() -> None:
    frontier = Frontier(range(200))
    view = frontier.tokens
    for token in range(400):
        frontier.publish((token,))
    assert view.tolist() == list(range(200))


@pytest.mark.parametrize("token", [-1, 2**32])
def test_what_32_bits_do_not_hold_is_refused_and_changes_nothing(token: int) -> None:
    frontier = Frontier((5,))
    with pytest.raises(OverflowError):
        frontier.publish((1, token))
    assert frontier.tokens.tolist() == [5]
    assert frontier.digest == of([5])
