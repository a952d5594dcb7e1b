"""M7.2: the nine-row tree at P = 5, its greedy and typical winners and its commit, beside everything they reject.

M7.2 counts the root as a row and P as a KV length; here the root is the anchor (row 0 of the pass, not a candidate), the
published prefix has P + 1 tokens, and what M7.2 publishes as [11, 21, 31] is [21, 31] after the anchor 11, plus one token.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from contracts.capability import Exactness, bind
from contracts.errors import FailedPrecondition, InvalidArgument
from contracts.graph import CandidateGraph, Draw, check_commit
from contracts.randomness import CoinChooser
from contracts.topology import ProbabilitySemantics, SamplingRelation, ancestor_mask, path_to
from models.backend import RowBlock
from models.laws import TargetLaws
from models.load import load_backend
from tests.helpers.proposals import position_ids
from tests.helpers.tiny_models import tiny_checkpoint
from tests.oracle.m72.medusa_reference import parents_of
from verifier.selection import VERIFIERS, Selection
from verifier.selection.typical import threshold

P = 5
CHOICES = [(0,), (1,), (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
TOKENS = [21, 22, 31, 32, 33, 31, 32, 33]
VOCAB = 50
PARENTS, PATHS = parents_of(CHOICES)


@pytest.fixture
def graph() -> CandidateGraph:
    return CandidateGraph(
        np.array(TOKENS),
        np.array(PARENTS),
        (("medusa",),) * 8,
        tuple(Draw(parent, row, "medusa") for row, parent in enumerate(PARENTS)),
        semantics=frozenset({ProbabilitySemantics.SCORE_ONLY}),
        relations=frozenset({SamplingRelation.BEAM}),
    )


def surface(*, root: dict[int, float], after_21: dict[int, float], after_22: dict[int, float]) -> TargetLaws:
    """Target laws of the root and the two depth-1 rows; what is not named is spread over the other tokens."""
    table = np.full((9, VOCAB), 1.0 / VOCAB)
    for row, law in ((0, root), (1, after_21), (2, after_22)):
        table[row] = (1.0 - sum(law.values())) / (VOCAB - len(law))
        for token, probability in law.items():
            table[row, token] = probability
    return TargetLaws.from_probabilities(table)


def worked_surface() -> TargetLaws:
    return surface(root={21: 0.5, 22: 0.4}, after_21={31: 0.5, 32: 0.3}, after_22={31: 0.9})


def choose(name: str, graph: CandidateGraph, laws: TargetLaws) -> Selection:
    return VERIFIERS[name].select(graph, laws, CoinChooser(0, P + 1), prefix_len=P + 1)


def test_positions_follow_depth_and_not_packed_rows(graph: CandidateGraph) -> None:
    positions = [P, *position_ids(graph.parents, P + 1).tolist()]
    assert positions == [5, 6, 6, 7, 7, 7, 7, 7, 7]
    assert positions != list(range(P, P + 9))


def test_rectangular_mask_shows_the_prompt_and_ancestors_only(graph: CandidateGraph) -> None:
    with_root = np.array([-1, *(parent + 1 for parent in PARENTS)])
    mask = np.concatenate([np.ones((9, P), dtype=bool), ancestor_mask(with_root)], axis=1)[None, None]
    assert mask.shape == (1, 1, 9, 14)
    paths: list[tuple[int, ...]] = [(), *PATHS]
    for u, over in enumerate(paths):
        for v, under in enumerate(paths):
            assert mask[0, 0, u, P + v] == (over[: len(under)] == under)


def test_there_are_six_paths_to_leaves_and_staged_rows_are_unique(graph: CandidateGraph) -> None:
    leaves = sorted(set(range(8)) - set(PARENTS))
    gathered = [[0, *(row + 1 for row in path_to(graph.parents, leaf))] for leaf in leaves]
    assert gathered == [[0, 1, 3], [0, 1, 4], [0, 1, 5], [0, 2, 6], [0, 2, 7], [0, 2, 8]]
    assert [P + row for row in range(9)] == list(range(5, 14))


def test_greedy_winner_is_21_31(graph: CandidateGraph) -> None:
    selection = choose("greedy", graph, worked_surface())
    assert [TOKENS[row] for row in selection.rows] == [21, 31]


def test_logits_are_compared_with_successors_and_not_with_their_own_input(graph: CandidateGraph) -> None:
    # Row 21 predicting itself, which self-alignment would take for a match.
    laws = surface(root={40: 0.9}, after_21={21: 0.9}, after_22={22: 0.9})
    selection = choose("greedy", graph, laws)
    assert selection.rows == ()
    assert selection.token == 40


def test_typical_winner_is_22_31_by_likelihood_among_the_longest(graph: CandidateGraph) -> None:
    selection = choose("typical", graph, worked_surface())
    assert [TOKENS[row] for row in selection.rows] == [22, 31]
    # Both 21, 31 and 22, 31 pass twice: 0.5 * 0.5 < 0.4 * 0.9. Raw sums would say the same of 1.0 < 1.3; here they differ:
    split = surface(root={21: 0.3, 22: 0.55}, after_21={31: 0.65}, after_22={31: 0.36, 32: 0.3})
    assert 0.3 + 0.65 > 0.55 + 0.36
    assert 0.3 * 0.65 < 0.55 * 0.36
    assert [TOKENS[row] for row in choose("typical", graph, split).rows] == [22, 31]


def test_only_prefixes_count(graph: CandidateGraph) -> None:
    # 31 would pass under both, but neither 21 nor 22 passes at the root.
    laws = surface(root={40: 0.95}, after_21={31: 0.9}, after_22={31: 0.9})
    assert choose("typical", graph, laws).rows == ()
    assert choose("greedy", graph, laws).rows == ()


def test_every_failing_suffix_still_publishes_one_token(graph: CandidateGraph) -> None:
    laws = surface(root={40: 1.0}, after_21={}, after_22={})
    for name in ("greedy", "typical", "membership"):
        assert choose(name, graph, laws).token == 40


def test_threshold_is_a_minimum_and_falls_with_entropy() -> None:
    assert threshold(0.0) == 0.09
    assert threshold(3.0) == pytest.approx(0.3 * math.exp(-3.0))
    assert threshold(1.0) == 0.09 < 0.3 * math.exp(-1.0)
    for entropy in (0.0, 1.0, 3.0):
        assert threshold(entropy) < max(0.09, 0.3 * math.exp(-entropy)) + 1e-15
    assert threshold(2.0) > threshold(4.0)


def _typical_by(
    graph: CandidateGraph, laws: TargetLaws, floor_of: object
) -> list[int]:  # the acceptance set of depth-1 rows
    law = laws.row(-1)
    assert callable(floor_of)
    return [row for row in (0, 1) if law.at(graph.token_ids[row : row + 1])[0] > floor_of(law.entropy())]


def test_maximum_for_minimum_and_wrong_entropy_sign_accept_other_tokens(graph: CandidateGraph) -> None:
    laws = surface(root={21: 0.5, 22: 0.1}, after_21={}, after_22={})
    right = _typical_by(graph, laws, threshold)
    assert right == [0, 1]
    assert _typical_by(graph, laws, lambda h: max(0.09, 0.3 * math.exp(-h))) == right
    sharp = surface(root={21: 0.88, 22: 0.1}, after_21={}, after_22={})
    assert _typical_by(graph, sharp, threshold) == [0, 1]
    assert _typical_by(graph, sharp, lambda h: max(0.09, 0.3 * math.exp(-h))) == [0]
    flat = surface(root={21: 0.03, 22: 0.02}, after_21={}, after_22={})
    assert _typical_by(graph, flat, threshold) == [0, 1]
    assert _typical_by(graph, flat, lambda h: min(0.09, 0.3 * math.exp(h))) == []


def test_the_comparison_is_strict(graph: CandidateGraph) -> None:
    assert choose("typical", graph, surface(root={21: 0.09, 40: 0.91}, after_21={}, after_22={})).rows == ()
    assert choose("typical", graph, surface(root={21: 0.0901, 40: 0.9}, after_21={40: 1.0}, after_22={})).rows == (0,)


def test_typical_is_labelled_heuristic_and_its_candidates_fit_no_rejection_contract(graph: CandidateGraph) -> None:
    assert VERIFIERS["typical"].capability.exactness is Exactness.HEURISTIC
    for name in ("rejection", "specinfer", "sequoia"):
        with pytest.raises(FailedPrecondition):
            bind(VERIFIERS[name].capability, graph)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("m72"), vocab_size=VOCAB)


def test_typical_winner_commits_staged_rows_5_7_11_as_5_6_7(graph: CandidateGraph, checkpoint: Path) -> None:
    selected = choose("typical", graph, worked_surface()).rows
    keep = [0, *(row + 1 for row in selected)]
    assert [P + row for row in keep] == [5, 7, 11]
    assert [P + row for row in keep] != [5, 6, 7]
    backend = load_backend(checkpoint)
    prompt = np.array([4, 8, 15, 16, 23])

    def run(slot: object, tokens: npt.ArrayLike, positions: npt.ArrayLike, parents: npt.ArrayLike) -> torch.Tensor:
        blocks = [RowBlock(slot, *(np.asarray(a, dtype=np.int64) for a in (tokens, positions, parents)))]  # type: ignore[arg-type]
        return backend.forward(blocks).logits[0]

    slot = backend.allocate(64)
    run(slot, prompt, np.arange(P), np.arange(-1, P - 1))
    backend.commit(slot, list(range(P)))
    positions = [P, *position_ids(graph.parents, P + 1).tolist()]
    tree = run(slot, [11, *TOKENS], positions, [-1, *(parent + 1 for parent in PARENTS)])
    frontier = tree[keep[-1]]
    backend.commit(slot, keep)
    assert slot.length == P + 3
    after = run(slot, [40], [P + 3], [-1])[0]
    plain = backend.allocate(64)
    published = [*prompt.tolist(), 11, 22, 31, 40]
    rows = run(plain, published, np.arange(9), np.arange(-1, 8))
    torch.testing.assert_close(after, rows[-1], atol=1e-4, rtol=1e-4)
    # The next frontier is the terminal row (packed row 6), not its predecessor.
    torch.testing.assert_close(frontier, rows[-2], atol=1e-4, rtol=1e-4)
    assert not torch.allclose(tree[keep[-2]], rows[-2], atol=1e-2)


def test_commits_by_length_or_across_paths_are_rejected(graph: CandidateGraph) -> None:
    check_commit(graph, [1, 5])
    for wrong in ([1, 2], [0, 1], [1, 3], [5]):
        with pytest.raises(InvalidArgument):
            check_commit(graph, wrong)
