"""Passes over int8 and int4 weights are those over fp32 weights of their values, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from contracts.errors import InvalidArgument
from models.backend import Backend
from models.config import read_config
from models.load import Dtype, backend_of, load_backend
from models.quantized import quantize_int4, quantize_int8
from models.weights import DecoderWeights, read_weights
from tests.unit.models.steps import Load, prefill, tree_block


def _rounded(weights: DecoderWeights, quantize: Callable[[Tensor], Tensor]) -> DecoderWeights:
    """Layers through `quantize`, embedding and head through int8, vectors as they are."""
    vocabulary = (weights.embedding.data_ptr(), weights.head.data_ptr())

    def change(tensor: Tensor) -> Tensor:
        if tensor.dim() == 1:
            return tensor
        return quantize_int8(tensor).values() if tensor.data_ptr() in vocabulary else quantize(tensor)

    return weights.map(change)


def _of_values(directory: Path, dtype: Dtype) -> Backend:
    config = read_config(directory)
    quantize = quantize_int4 if dtype == "int4" else quantize_int8
    weights = _rounded(read_weights(directory, config, torch.float32), lambda matrix: quantize(matrix).values())
    return backend_of(config, weights, checkpoint_digest="of values", kv_budget_tokens=512, threads=1)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("rows", [1, 2, 4, 5, 6, 8, 17])
def test_a_pass_has_the_bits_of_one_over_fp32_weights_of_the_same_values(
    load: Load, grouped: Path, dtype: Dtype, rows: int
) -> None:
    rng = np.random.default_rng(rows)
    prefix, tokens = rng.integers(0, 97, 40).tolist(), rng.integers(0, 97, rows).tolist()
    parents = [-1, *((row - 1) // 2 for row in range(1, rows))]
    found = []
    for backend in (load("cpu-llvm", dtype), _of_values(grouped, dtype)):
        slot = backend.allocate(80)
        before = prefill(backend, slot, prefix)
        found.append((before, backend.forward([tree_block(slot, tokens, parents)]).logits[0]))
        backend.release(slot)
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert load("cpu-llvm", dtype).info.dtype == dtype


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_an_implementation_without_codes_refuses_them(grouped: Path, dtype: Dtype) -> None:
    with pytest.raises(InvalidArgument, match=f"dtype.*'{dtype}' is computed by cpu-llvm only, not by cpu-torch"):
        load_backend(grouped, dtype=dtype, implementation="cpu-torch")


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_a_model_whose_matrices_are_no_whole_groups_is_refused(tiny: Path, dtype: Dtype) -> None:
    with pytest.raises(InvalidArgument, match=r"dtype.*whole groups of 32 inputs"):
        load_backend(tiny, dtype=dtype, implementation="cpu-llvm")
