"""Strict mode: whether a row's bits are its own, tried out on the very weights and device before it is claimed.

With one row bucket every matrix product has one shape, so one kernel computes it, which sums each row by itself; attention
sums by position (models.cuda.triton_attention). Nothing promises that for closed libraries, so it is measured when a model
is loaded: rows of random trees beside other rows and sessions, against the same tokens one at a time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from contracts.errors import FailedPrecondition
from models.backend import Backend, BackendInfo, Int64Array, KVSlot, RowBlock
from models.config import DecoderConfig
from models.cuda.decoder import CudaDecoder
from models.cuda.kernels import PAGE_ROWS, SPLIT_ROWS
from models.passes import depths
from models.weights import DecoderWeights

# Larger passes are cut, so no number of rows breaks it: the bound is merely large.
ANY_ROWS = 1 << 30
_TRIALS = 3
_PATHS = 2


def cuda_decoder(
    info: BackendInfo,
    config: DecoderConfig,
    weights: DecoderWeights,
    *,
    kv_budget_tokens: int,
    fixed_rows: int | None,
    poison: bool,
) -> CudaDecoder:
    """A decoder that claims row invariance where `fixed_rows` asks for it.

    Raises FailedPrecondition where it is asked for and does not hold here.
    """
    decoder = CudaDecoder(
        info, config, weights, kv_budget_tokens=kv_budget_tokens, poison=poison, fixed_rows=fixed_rows
    )
    if fixed_rows is not None:
        if not rows_are_invariant(decoder, fixed_rows):
            raise FailedPrecondition("fixed_rows", "a row's bits depend on the rows beside it on this device")
        decoder.info = replace(info, row_invariant_up_to=ANY_ROWS)
    return decoder


def rows_are_invariant(backend: Backend, rows: int) -> bool:
    """Whether rows of passes of 2 to 2 * `rows` rows, of two sessions, equal bit for bit passes of one row each.

    The context ends just before a split's border where the model and the KV budget allow, so that paths cross it.
    Leaves nothing behind. Raises ResourceExhausted where not even a short context fits the KV budget.
    """
    rng = np.random.default_rng(0)
    vocab, most = backend.info.vocab_size, 2 * rows
    fits = backend.info.context_length > SPLIT_ROWS + most + PAGE_ROWS
    context = SPLIT_ROWS - 3 if fits else max(1, backend.info.context_length // 2)
    for trial in range(_TRIALS):
        # From one row beside another up to more than a pass holds.
        count = min(max(2, most >> trial), backend.info.context_length - context)
        tokens = rng.integers(0, vocab, count)
        parents = np.array([int(rng.integers(max(-1, row - 4), row)) for row in range(count)], np.int64)
        prefix = rng.integers(0, vocab, context)
        slots = [backend.allocate(context + count) for _ in range(2)]
        try:
            for slot in slots:
                _commit(backend, RowBlock(slot, prefix, np.arange(context), np.arange(context) - 1, parents[:0]))
            own, other = slots
            block = RowBlock(own, tokens, context + np.array(depths(parents.tolist()), np.int64), parents)
            beside = RowBlock(other, tokens[:1], np.array([context]), np.array([-1]))
            logits = backend.forward([beside, block]).logits[1].clone()
            backend.rollback(own)
            backend.rollback(other)
            for row in rng.choice(count, min(_PATHS, count), replace=False).tolist():
                if not torch.equal(logits[row], _alone(backend, other, tokens, parents.tolist(), row)):
                    return False
        finally:
            for slot in slots:
                backend.release(slot)
    return True


def _alone(backend: Backend, slot: KVSlot, tokens: Int64Array, parents: list[int], row: int) -> Tensor:
    """Logits of `row` after its path was committed token by token; leaves the slot as it was."""
    length, path = slot.length, []
    while row >= 0:
        path.append(row)
        row = parents[row]
    for depth, at in enumerate(reversed(path)):
        block = RowBlock(slot, tokens[at : at + 1], np.array([length + depth]), np.array([-1]))
        logits = backend.forward([block]).logits[0][0].clone()
        backend.commit(slot, [0])
    backend.truncate(slot, length)
    return logits


def _commit(backend: Backend, block: RowBlock) -> None:
    backend.forward([block])
    backend.commit(block.slot, range(len(block.token_ids)))
