from __future__ import annotations

import pytest

from contracts.graph import check_graph
from contracts.receipt import Closing, FinishReason
from tests.unit.verifier.rig import chain, tree
from verifier.stopping import cut, within_reach

PATH, ROWS = (5, 6, 7), (0, 2, 4)


@pytest.mark.parametrize(
    ("stop", "room", "tokens", "rows", "closing", "finish"),
    [
        pytest.param((), 9, (5, 6, 7, 8), ROWS, Closing.BONUS, FinishReason.NONE, id="nothing to cut"),
        pytest.param((8,), 9, (5, 6, 7, 8), ROWS, Closing.BONUS, FinishReason.STOP, id="the closing token stops"),
        pytest.param((6,), 9, (5, 6), (0, 2), Closing.NONE, FinishReason.STOP, id="a stop inside the path"),
        pytest.param((7, 6), 9, (5, 6), (0, 2), Closing.NONE, FinishReason.STOP, id="the first of two stops"),
        pytest.param((), 4, (5, 6, 7, 8), ROWS, Closing.BONUS, FinishReason.LENGTH, id="exactly full"),
        pytest.param((), 3, (5, 6, 7), ROWS, Closing.NONE, FinishReason.LENGTH, id="full at the path's end"),
        pytest.param((), 1, (5,), (0,), Closing.NONE, FinishReason.LENGTH, id="full inside the path"),
        pytest.param((6,), 2, (5, 6), (0, 2), Closing.NONE, FinishReason.STOP, id="a stop in the last place is a stop"),
        pytest.param(
            (7,), 2, (5, 6), (0, 2), Closing.NONE, FinishReason.LENGTH, id="a stop past the limit is not seen"
        ),
    ],
)
def test_a_publication_ends_at_the_first_stop_or_the_limit(
    stop: tuple[int, ...],
    room: int,
    tokens: tuple[int, ...],
    rows: tuple[int, ...],
    closing: Closing,
    finish: FinishReason,
) -> None:
    publication = cut(PATH, ROWS, 8, Closing.BONUS, stop=stop, room=room)
    assert (publication.tokens, publication.rows) == (tokens, rows)
    assert (publication.closing, publication.finish) == (closing, finish)


@pytest.mark.parametrize("room", range(1, 6))
def test_one_kv_row_is_committed_per_published_token_and_never_the_newest_tokens_own(room: int) -> None:
    publication = cut(PATH, ROWS, 8, Closing.BONUS, stop=(), room=room)
    assert publication.kv_rows == (0, 1, 3, 5)[:room]
    assert len(publication.kv_rows) == len(publication.tokens)


def test_candidates_out_of_reach_leave_with_their_draws_and_the_rest_keeps_its_order() -> None:
    graph = tree([(1, -1), (2, 0), (3, 1), (4, -1), (5, 3)])
    near, originals = within_reach(graph, 1)
    assert list(originals) == [0, 3]
    assert near.token_ids.tolist() == [1, 4]
    assert [(draw.parent, draw.row) for draw in near.draws] == [(-1, 0), (-1, 1)]
    middle, originals = within_reach(graph, 2)
    assert list(originals) == [0, 1, 3, 4]
    assert middle.parents.tolist() == [-1, 0, -1, 2]
    check_graph(middle, vocab_size=9, max_rows=9)


def test_a_graph_within_reach_is_left_alone() -> None:
    graph = chain(1, 2, 3)
    same, originals = within_reach(graph, 3)
    assert same is graph
    assert list(originals) == [0, 1, 2]
