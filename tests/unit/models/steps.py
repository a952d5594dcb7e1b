"""Short ways to feed a backend, and a dumb oracle: one path at a time, one row at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from models.backend import Backend, KVSlot, RowBlock
from models.load import Dtype, Implementation, load_backend
from models.passes import depths
from tests.helpers.cuda_decoders import cuda_decoder_of

Load = Callable[..., Backend]
IMPLEMENTATIONS: tuple[Implementation, ...] = ("cpu-llvm", "cpu-torch", "cuda-graph", "transformers")


def load_on_cpu(
    directory: Path,
    *,
    implementation: Implementation,
    dtype: Dtype = "float32",
    kv_budget_tokens: int = 16384,
    poison: bool = False,
) -> Backend:
    """Any implementation: on a CPU users are refused the pass for GPUs, which is slow there, but computes the same."""
    if implementation == "cuda-graph":
        return cuda_decoder_of(directory, dtype=dtype, kv_budget_tokens=kv_budget_tokens, poison=poison)
    return load_backend(
        directory,
        implementation=implementation,
        dtype=dtype,
        kv_budget_tokens=kv_budget_tokens,
        threads=2,
        poison=poison,
    )


def tree_block(
    slot: KVSlot, tokens: Sequence[int], parents: Sequence[int], wanted: Sequence[int] | None = None
) -> RowBlock:
    """A block over a slot with nothing staged, positions by depth."""
    shape = np.asarray(parents, np.int64)
    return RowBlock(
        slot,
        np.asarray(tokens, np.int64),
        slot.length + np.array(depths(shape.tolist()), np.int64),
        shape,
        None if wanted is None else np.asarray(wanted, np.int64),
    )


def chain(slot: KVSlot, tokens: Sequence[int]) -> RowBlock:
    return tree_block(slot, tokens, range(-1, len(tokens) - 1))


def prefill(backend: Backend, slot: KVSlot, tokens: Sequence[int]) -> Tensor:
    """Commit tokens in one pass; logits of all of them."""
    logits = backend.forward([chain(slot, tokens)]).logits[0]
    backend.commit(slot, range(len(tokens)))
    return logits


def one_by_one(backend: Backend, tokens: Sequence[int]) -> Tensor:
    """Logits after each token, each computed in a pass of its own, in a fresh slot."""
    slot = backend.allocate(len(tokens))
    try:
        return torch.cat([prefill(backend, slot, [token]) for token in tokens])
    finally:
        backend.release(slot)


def path_tokens(tokens: Sequence[int], parents: Sequence[int], row: int) -> list[int]:
    path = []
    while row >= 0:
        path.append(tokens[row])
        row = parents[row]
    return path[::-1]


def random_tree(rng: np.random.Generator, rows: int, vocab_size: int) -> tuple[list[int], list[int]]:
    """Tokens and parents: several roots, siblings, chains."""
    parents = [int(rng.integers(-1, row)) for row in range(rows)]
    return rng.integers(0, vocab_size, rows).tolist(), parents
