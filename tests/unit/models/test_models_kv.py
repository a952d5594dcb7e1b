"""Commit, rollback, truncate and release leave exactly what they promise; budgets hold; dead rows never leak."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from models.backend import Backend, RowBlock
from models.load import load_backend
from tests.unit.models.steps import (
    IMPLEMENTATIONS,
    Load,
    chain,
    one_by_one,
    path_tokens,
    prefill,
    random_tree,
    tree_block,
)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("taps", [(), ("layer:0",), ("layer:2",), ("final_norm",)], ids=str)
def test_rows_without_logits_leave_the_same_keys_values_and_taps(
    load: Load, implementation: str, taps: tuple[str, ...]
) -> None:
    """Nothing is read behind the last layer's keys and values there, unless a tap reads it."""
    backend = load(implementation)
    assert backend.info.num_layers == 3
    tokens = np.random.default_rng(3).integers(0, backend.info.vocab_size, 40).tolist()
    whole, bare = backend.allocate(64), backend.allocate(64)
    expected = backend.forward([chain(whole, tokens)], taps=taps)
    got = backend.forward([tree_block(bare, tokens, range(-1, 39), wanted=[])], taps=taps)
    assert tuple(got.logits[0].shape) == (0, backend.info.vocab_size)
    for tap in taps:
        assert torch.equal(got.hidden[tap][0], expected.hidden[tap][0])
    backend.commit(whole, range(40))
    backend.commit(bare, range(40))
    after = [backend.forward([chain(slot, [7, 8])]).logits[0] for slot in (whole, bare)]
    assert torch.equal(*after)
    backend.release(whole)
    backend.release(bare)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1), rounds=st.integers(1, 5))
def test_after_any_rounds_the_cache_equals_a_fresh_prefill(
    load: Load, implementation: str, seed: int, rounds: int
) -> None:
    backend = load(implementation)
    rng = np.random.default_rng(seed)
    slot = backend.allocate(96)
    history: list[int] = rng.integers(0, backend.info.vocab_size, int(rng.integers(1, 20))).tolist()
    prefill(backend, slot, history)
    for _ in range(rounds):
        tokens, parents = random_tree(rng, int(rng.integers(1, 12)), backend.info.vocab_size)
        backend.forward([tree_block(slot, tokens, parents)])
        fate = rng.integers(0, 4)
        if fate == 0:
            backend.rollback(slot)
        elif fate == 1:
            length = int(rng.integers(0, slot.length + 1))
            backend.truncate(slot, length)
            history = history[:length]
        else:
            path = []
            row = int(rng.integers(0, len(tokens)))
            while row >= 0:
                path.append(row)
                row = parents[row]
            path.reverse()
            backend.commit(slot, path)
            history += [tokens[row] for row in path]
        assert (slot.length, slot.staged) == (len(history), 0)
    probe = backend.forward([chain(slot, [5, 6])]).logits[0]
    fresh = backend.allocate(len(history) + 2)
    if history:
        prefill(backend, fresh, history)
    expected = backend.forward([chain(fresh, [5, 6])]).logits[0]
    backend.release(slot)
    backend.release(fresh)
    assert torch.isfinite(probe).all()
    assert (probe - expected).abs().max() < 1e-4


def test_rollback_leaves_nothing(backend: Backend) -> None:
    slot = backend.allocate(40)
    prefill(backend, slot, [1, 2, 3])
    before = backend.forward([chain(slot, [4])]).logits[0]
    backend.rollback(slot)
    backend.forward([tree_block(slot, list(range(20)), [-1] * 20)])
    backend.rollback(slot)
    assert (slot.length, slot.staged) == (3, 0)
    assert torch.equal(backend.forward([chain(slot, [4])]).logits[0], before)
    backend.release(slot)


def test_a_slot_reuses_nothing_of_the_slot_that_had_its_memory(backend: Backend) -> None:
    expected = one_by_one(backend, [1, 2, 3, 4])
    for _ in range(6):
        old = backend.allocate(64)
        prefill(backend, old, list(range(60)))
        backend.release(old)
        slot = backend.allocate(64)
        got = prefill(backend, slot, [1, 2, 3, 4])
        assert torch.isfinite(got).all()
        assert (got - expected).abs().max() < 1e-4
        backend.release(slot)


def test_the_path_committed_is_the_one_named(backend: Backend) -> None:
    tokens, parents = [11, 12, 13, 14, 15, 16], [-1, 0, 0, 2, 2, 4]
    slot = backend.allocate(16)
    prefill(backend, slot, [9])
    backend.forward([tree_block(slot, tokens, parents)])
    backend.commit(slot, [0, 2, 4, 5])
    after = backend.forward([chain(slot, [17])]).logits[0][0]
    alone = one_by_one(backend, [9, *path_tokens(tokens, parents, 5), 17])[-1]
    assert (after - alone).abs().max() < 1e-4
    backend.release(slot)


@pytest.mark.parametrize("keep", [[1], [0, 3], [0, 0], [0, 1, 2], [5], [-1], [0, -1]])
def test_keeping_what_is_no_path_is_refused_and_changes_nothing(backend: Backend, keep: list[int]) -> None:
    slot = backend.allocate(16)
    backend.forward([tree_block(slot, [1, 2, 3, 4], [-1, 0, 0, 1])])
    with pytest.raises(InvalidArgument, match="path"):
        backend.commit(slot, keep)
    assert (slot.length, slot.staged) == (0, 4)
    backend.release(slot)


def test_the_budget_is_shared_refused_beyond_and_given_back(tiny: Path) -> None:
    backend = load_backend(tiny, implementation="cpu-torch", kv_budget_tokens=96)
    first = backend.allocate(60)
    with pytest.raises(ResourceExhausted, match="48 rows wanted, 32 of 96 left, in pages of 16"):
        backend.allocate(33)
    backend.release(first)
    backend.release(first)
    assert backend.allocate(96).capacity == 96
    with pytest.raises(InvalidArgument):
        backend.allocate(0)


def test_a_full_slot_refuses_rows_and_stages_none_in_any_slot(backend: Backend) -> None:
    small, large = backend.allocate(4), backend.allocate(32)
    prefill(backend, small, [1, 2])
    with pytest.raises(ResourceExhausted, match="room for 2"):
        backend.forward([chain(large, [1, 2, 3]), chain(small, [1, 2, 3])])
    assert (small.staged, large.staged) == (0, 0)
    backend.release(small)
    backend.release(large)


def test_dead_and_foreign_slots_are_refused(backend: Backend, tiny: Path) -> None:
    slot = backend.allocate(4)
    block = chain(slot, [1])
    backend.release(slot)
    foreign = load_backend(tiny, implementation="cpu-torch").allocate(4)
    for bad in (block, chain(foreign, [1])):
        with pytest.raises(FailedPrecondition, match="released, or allocated by another"):
            backend.forward([bad])
    with pytest.raises(FailedPrecondition):
        backend.rollback(foreign)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"token_ids": [1, 97]}, "token_ids"),
        ({"token_ids": [-1, 2]}, "token_ids"),
        ({"token_ids": [1]}, "blocks"),
        ({"parents": [-1, 1]}, "parents"),
        ({"parents": [-2, 0]}, "parents"),
        ({"positions": [0, 0]}, "positions"),
        ({"positions": [1, 2]}, "positions"),
        ({"logits_for": [2]}, "logits_for"),
    ],
)
def test_malformed_blocks_are_refused_by_field(backend: Backend, changes: dict[str, list[int]], field: str) -> None:
    slot = backend.allocate(8)
    good = {"token_ids": [1, 2], "positions": [0, 1], "parents": [-1, 0]}
    arrays = {name: np.array(value, np.int64) for name, value in {**good, **changes}.items()}
    with pytest.raises(InvalidArgument) as caught:
        backend.forward([RowBlock(slot, **arrays)])
    assert field in caught.value.field
    assert slot.staged == 0
    backend.release(slot)


@pytest.mark.parametrize("tap", ["layer:3", "layer:-1", "layer:", "norm", "layer:x"])
def test_a_tap_that_does_not_exist_is_refused(backend: Backend, tap: str) -> None:
    slot = backend.allocate(8)
    with pytest.raises(InvalidArgument, match="known: final_norm, layer:0 to layer:2"):
        backend.forward([chain(slot, [1])], taps=(tap,))
    backend.release(slot)
