"""M7.2 sections 0x03F and 0x06E: the mistakes their oracles reject, made on a real pass over the nine-row tree at P = 5.

Each mistake keeps every shape. It is either refused by name or gives other logits than the published text alone does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from contracts.errors import InvalidArgument
from models.backend import Backend, KVSlot, RowBlock
from models.load import load_backend
from tests.helpers.proposals import position_ids
from tests.helpers.tiny_models import tiny_checkpoint
from tests.oracle.m72.medusa_reference import parents_of

PROMPT = [4, 8, 15, 16, 23]
P = len(PROMPT)
VOCAB = 50
PARENTS, PATHS = parents_of([(0,), (1,), (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)])
# With the root as row 0, as M7.2 counts: the path of [11, 22, 31] is 0, 2, 6.
TOKENS = [11, 21, 22, 31, 32, 33, 31, 32, 33]
TREE = [-1, *(parent + 1 for parent in PARENTS)]
POSITIONS = [P, *position_ids(np.array(PARENTS), P + 1).tolist()]
PATH, NEXT = [0, 2, 6], 40


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Backend:
    return load_backend(tiny_checkpoint(tmp_path_factory.mktemp("m72"), vocab_size=VOCAB))


def run(
    backend: Backend, slot: KVSlot, tokens: Sequence[int], positions: Sequence[int], parents: Sequence[int]
) -> torch.Tensor:
    ids, places, above = (np.array(values, dtype=np.int64) for values in (tokens, positions, parents))
    return backend.forward([RowBlock(slot, ids, places, above)]).logits[0].clone()


def alone(backend: Backend, text: Sequence[int]) -> torch.Tensor:
    """float32 [len(text), V]: the logits of a plain causal pass."""
    slot = backend.allocate(len(text))
    out = run(backend, slot, text, range(len(text)), range(-1, len(text) - 1))
    backend.release(slot)
    return out


def staged(
    backend: Backend,
    *,
    prompt: Sequence[int] = PROMPT,
    positions: Sequence[int] = POSITIONS,
    parents: Sequence[int] = TREE,
) -> tuple[KVSlot, torch.Tensor]:
    """A slot with the prompt committed and the tree staged, and the tree's logits [9, V]."""
    slot = backend.allocate(64)
    run(backend, slot, prompt, range(len(prompt)), range(-1, len(prompt) - 1))
    backend.commit(slot, list(range(len(prompt))))
    return slot, run(backend, slot, TOKENS, positions, parents)


def close(one: torch.Tensor, two: torch.Tensor) -> bool:
    return torch.allclose(one, two, atol=1e-4, rtol=1e-4)


def history(row: int) -> list[int]:
    path = [row]
    while TREE[path[0]] >= 0:
        path.insert(0, TREE[path[0]])
    return [TOKENS[r] for r in path]


def test_every_row_sees_the_prompt_and_its_own_history(backend: Backend) -> None:
    _, tree = staged(backend)
    assert all(close(tree[row], alone(backend, [*PROMPT, *history(row)])[-1]) for row in range(9))


def test_packed_rows_for_depths_are_refused(backend: Backend) -> None:
    with pytest.raises(InvalidArgument, match="position"):
        staged(backend, positions=list(range(P, P + 9)))


def test_a_sibling_that_is_seen_changes_the_row(backend: Backend) -> None:
    # Row 4 made a child of its sibling 3: one position further down, and one token too many in sight.
    leaky = [*TREE[:4], 3, *TREE[5:]]
    _, tree = staged(backend, parents=leaky, positions=[*POSITIONS[:4], POSITIONS[3] + 1, *POSITIONS[5:]])
    assert not close(tree[4], alone(backend, [*PROMPT, *history(4)])[-1])
    assert close(tree[3], alone(backend, [*PROMPT, *history(3)])[-1])


def test_a_prompt_key_that_is_hidden_changes_the_row(backend: Backend) -> None:
    assert not close(alone(backend, [*PROMPT[1:], *history(6)])[-1], alone(backend, [*PROMPT, *history(6)])[-1])


@pytest.mark.parametrize("keep", [[0, 2, 2], [0, 2, 3], [0, 6], [2, 6], [0, 1, 2], [0, 2, 9]])
def test_rows_kept_twice_or_off_the_path_are_refused_before_anything_moves(backend: Backend, keep: list[int]) -> None:
    slot, tree = staged(backend)
    with pytest.raises(InvalidArgument, match="keep"):
        backend.commit(slot, keep)
    assert slot.length == P
    # The plan was checked first: the right one still goes through, from rows that nothing has touched.
    backend.commit(slot, PATH)
    after = run(backend, slot, [NEXT], [P + 3], [-1])[0]
    assert close(after, alone(backend, [*PROMPT, 11, 22, 31, NEXT])[-1])
    assert close(tree[PATH[-1]], alone(backend, [*PROMPT, 11, 22, 31])[-1])


def test_committing_a_rows_instead_of_a_plus_one_loses_a_token(backend: Backend) -> None:
    slot, _ = staged(backend)
    backend.commit(slot, PATH[:-1])
    assert slot.length == P + 2
    after = run(backend, slot, [NEXT], [P + 2], [-1])[0]
    assert not close(after, alone(backend, [*PROMPT, 11, 22, 31, NEXT])[-1])


def test_the_kv_of_another_path_than_the_published_one_shows(backend: Backend) -> None:
    slot, _ = staged(backend)
    backend.commit(slot, [0, 1, 3])
    after = run(backend, slot, [NEXT], [P + 3], [-1])[0]
    assert close(after, alone(backend, [*PROMPT, 11, 21, 31, NEXT])[-1])
    assert not close(after, alone(backend, [*PROMPT, 11, 22, 31, NEXT])[-1])


def test_frontier_logits_of_the_predecessor_are_other_logits(backend: Backend) -> None:
    _, tree = staged(backend)
    frontier = alone(backend, [*PROMPT, 11, 22, 31])[-1]
    assert close(tree[6], frontier)
    assert not close(tree[2], frontier)


def test_rows_move_down_over_each_other_without_loss(backend: Backend) -> None:
    # [5, 6, 7] <- [5, 6, 8] and then [6, 7] <- [7, 9] of a second tree: sources lie among the destinations.
    slot, _ = staged(backend)
    backend.commit(slot, [0, 1, 3])
    run(backend, slot, TOKENS, [position + 3 for position in POSITIONS], TREE)
    backend.commit(slot, PATH)
    after = run(backend, slot, [NEXT], [P + 6], [-1])[0]
    assert close(after, alone(backend, [*PROMPT, 11, 21, 31, 11, 22, 31, NEXT])[-1])
