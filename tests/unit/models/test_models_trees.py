"""A row of a tree computes what its own path alone computes, whatever lies beside it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from models.backend import Backend, RowBlock
from models.load import Dtype
from tests.unit.models.steps import Load, chain, one_by_one, path_tokens, prefill, random_tree, tree_block

PREFIX = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8]


@pytest.mark.parametrize("seed", range(4))
def test_every_row_of_a_random_tree_equals_decoding_its_path_alone(backend: Backend, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tokens, parents = random_tree(rng, 23, backend.info.vocab_size)
    slot = backend.allocate(64)
    prefix = PREFIX[: seed * 6 + 1]
    prefill(backend, slot, prefix)
    logits = backend.forward([tree_block(slot, tokens, parents)]).logits[0]
    for row in range(23):
        alone = one_by_one(backend, prefix + path_tokens(tokens, parents, row))[-1]
        assert (logits[row] - alone).abs().max() < 1e-4, row
    backend.release(slot)


def test_siblings_stand_at_their_depth_not_at_their_packed_row(backend: Backend) -> None:
    slot = backend.allocate(32)
    prefill(backend, slot, PREFIX[:4])
    many = backend.forward([tree_block(slot, [7, 8, 9, 10, 7], [-1, 0, 0, 0, 0])]).logits[0]
    backend.rollback(slot)
    few = backend.forward([tree_block(slot, [7, 7], [-1, 0])]).logits[0]
    assert (many[4] - few[1]).abs().max() < 1e-4
    backend.release(slot)


def test_a_tree_grown_level_by_level_equals_the_tree_in_one_pass(backend: Backend) -> None:
    slot = backend.allocate(32)
    prefill(backend, slot, PREFIX)
    whole = backend.forward([tree_block(slot, [1, 2, 3, 4, 5], [-1, 0, 0, 1, 2])]).logits[0]
    backend.rollback(slot)
    grown = [backend.forward([tree_block(slot, [1], [-1])]).logits[0]]
    for tokens, parents, depth in (([2, 3], [0, 0], 1), ([4, 5], [1, 2], 2)):
        block = RowBlock(slot, np.array(tokens), np.full(2, len(PREFIX) + depth), np.array(parents))
        grown.append(backend.forward([block]).logits[0])
    assert slot.staged == 5
    assert (torch.cat(grown) - whole).abs().max() < 1e-4
    backend.commit(slot, [0, 2, 4])
    after = backend.forward([chain(slot, [6])]).logits[0]
    alone = one_by_one(backend, [*PREFIX, 1, 3, 5, 6])[-1]
    assert (after[0] - alone).abs().max() < 1e-4
    backend.release(slot)


def test_sessions_mixed_in_one_pass_equal_separate_passes(backend: Backend) -> None:
    rng = np.random.default_rng(7)
    slots = [backend.allocate(64) for _ in range(4)]
    trees = [random_tree(rng, rows, backend.info.vocab_size) for rows in (1, 9, 17, 4)]
    for slot, length in zip(slots, (0, 33, 5, 16), strict=True):
        if length:
            prefill(backend, slot, rng.integers(0, backend.info.vocab_size, length).tolist())
    blocks = [tree_block(slot, *tree) for slot, tree in zip(slots, trees, strict=True)]
    mixed = backend.forward(blocks).logits
    for slot, block, together in zip(slots, blocks, mixed, strict=True):
        backend.rollback(slot)
        assert (backend.forward([block]).logits[0] - together).abs().max() < 1e-4
        backend.release(slot)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int4"])
@pytest.mark.parametrize("rows", [2, 3, 5, 6, 7, 8, 12, 13, 31, 64, 100])
def test_the_llvm_pass_gives_a_row_the_same_bits_beside_any_number_of_rows(load: Load, dtype: Dtype, rows: int) -> None:
    backend = load("cpu-llvm", dtype)
    assert rows <= backend.info.row_invariant_up_to
    rng = np.random.default_rng(rows)
    tokens, parents = random_tree(rng, rows, backend.info.vocab_size)
    slot = backend.allocate(160)
    prefix = rng.integers(0, backend.info.vocab_size, 37).tolist()
    prefill(backend, slot, prefix)
    logits = backend.forward([tree_block(slot, tokens, parents)]).logits[0]
    for row in rng.choice(rows, 2, replace=False).tolist():
        alone = one_by_one(backend, prefix + path_tokens(tokens, parents, row))[-1]
        assert torch.equal(logits[row], alone)
    backend.release(slot)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int4"])
def test_greedy_text_is_identical_with_and_without_speculation_and_however_prefilled(load: Load, dtype: Dtype) -> None:
    backend = load("cpu-llvm", dtype)
    plain = backend.allocate(128)
    expected = [int(prefill(backend, plain, PREFIX)[-1].argmax())]
    for _ in range(40):
        expected.append(int(prefill(backend, plain, [expected[-1]])[-1].argmax()))
    rng = np.random.default_rng(1)
    slot = backend.allocate(128)
    for token in PREFIX:
        last = prefill(backend, slot, [token])[-1]
    got = [int(last.argmax())]
    while len(got) < 41:
        # Row 0 is the anchor; the right continuation hides among wrong siblings.
        right = expected[len(got) : len(got) + 3]
        tokens, parents, at = [got[-1]], [-1], 0
        for token in right:
            tokens += [int(rng.integers(0, backend.info.vocab_size)), token]
            parents += [at, at]
            at = len(tokens) - 1
        logits = backend.forward([tree_block(slot, tokens, parents)]).logits[0]
        keep, row = [0], 0
        got.append(int(logits[0].argmax()))
        while (
            child := next((r for r, p in enumerate(parents) if p == row and tokens[r] == got[-1]), None)
        ) is not None:
            keep.append(child)
            row = child
            got.append(int(logits[row].argmax()))
        backend.commit(slot, keep)
    assert got[:41] == expected
    backend.release(plain)
    backend.release(slot)


def test_the_oracle_itself_equals_transformers(load: Load, tiny: object) -> None:
    reference = AutoModelForCausalLM.from_pretrained(tiny, attn_implementation="eager").eval()
    with torch.inference_mode():
        expected = reference(torch.tensor([PREFIX])).logits[0]
    assert (one_by_one(load("cpu-llvm"), PREFIX) - expected).abs().max() < 1e-4
