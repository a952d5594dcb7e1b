"""An index's trie as a proposal."""

import numpy as np
import pytest

from contracts.errors import InvalidArgument
from contracts.proposal import check_proposal
from contracts.retrieval import Retrieval
from orchestrator.retrieval_source import to_proposal


def trie(match_length: int = 2) -> Retrieval:
    """9 -> 5 -> 7 and 9 -> 6, then 8, best first."""

    def column(*values: int) -> np.ndarray:
        return np.array(values, dtype=np.int64)

    return Retrieval(
        match_length=match_length,
        match_count=6,
        tokens=column(9, 5, 7, 6, 8),
        parents=column(-1, 0, 1, 0, -1),
        depths=column(1, 2, 3, 2, 1),
        counts=column(5, 4, 3, 1, 1),
    )


def test_counts_rank_and_are_never_q():
    proposal = to_proposal("retrieval", trie(), round_hash="r")
    assert [node.score for node in proposal.nodes] == [5.0, 4.0, 3.0, 1.0, 1.0]
    assert all(node.q is None for node in proposal.nodes)
    assert not proposal.laws


@pytest.mark.parametrize(("match_length", "factor", "kept"), [(2, 0, 5), (2, 2, 4), (1, 2, 2), (1, 1, 1), (9, 1, 5)])
def test_a_spec_factor_offers_in_proportion_to_what_matched_and_keeps_whole_paths(match_length, factor, kept):
    proposal = to_proposal("retrieval", trie(match_length), round_hash="r", spec_factor=factor)
    assert [node.token for node in proposal.nodes] == [9, 5, 7, 6, 8][:kept]
    assert proposal.cost.truncated == (kept < 5)
    check_proposal(proposal, vocab_size=10, round_hash="r")


def test_ragged_columns_are_refused():
    answer = trie()
    ragged = Retrieval(match_length=2, tokens=answer.tokens[:2], parents=answer.parents, depths=answer.depths)
    with pytest.raises(InvalidArgument, match="columns of"):
        to_proposal("retrieval", ragged, round_hash="r")
