"""Rows may be given in place of embeddings: what a draft head's layer runs on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from contracts.errors import InvalidArgument
from models.backend import RowBlock
from models.config import read_config
from models.cpu.embedding import embedding_arrays, embedding_table
from models.cpu.formats import BF16, FP32, INT8
from models.load import Implementation, backend_of, load_backend
from models.quantized import quantize_int8
from models.weights import read_weights
from tests.helpers.tiny_models import tiny_checkpoint
from tests.unit.models.steps import IMPLEMENTATIONS, load_on_cpu

TOKENS = np.array([5, 9, 11, 5])
ROWS = np.arange(4)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_embeddings_given_as_rows_are_embeddings(tmp_path: Path, implementation: Implementation) -> None:
    directory = tiny_checkpoint(tmp_path)
    backend = load_on_cpu(directory, implementation=implementation, kv_budget_tokens=128)
    weights = read_weights(directory, read_config(directory), torch.float32)
    plain, given = backend.allocate(8), backend.allocate(8)
    inputs = weights.embedding[torch.from_numpy(TOKENS)]
    result = backend.forward(
        [
            RowBlock(plain, TOKENS, ROWS, ROWS - 1),
            RowBlock(given, np.zeros(4, np.int64), ROWS, ROWS - 1, inputs=inputs),
        ],
        taps=("final_norm",),
    )
    assert torch.allclose(result.logits[0], result.logits[1], atol=1e-5)
    assert torch.allclose(*result.hidden["final_norm"], atol=1e-5)


def test_rows_of_another_shape_are_refused(tmp_path: Path) -> None:
    backend = load_backend(tiny_checkpoint(tmp_path), kv_budget_tokens=64)
    slot = backend.allocate(8)
    with pytest.raises(InvalidArgument, match="inputs"):
        backend.forward([RowBlock(slot, TOKENS, ROWS, ROWS - 1, inputs=torch.zeros(4, 31))])
    assert slot.staged == 0


def test_weights_at_hand_make_the_backend_that_their_checkpoint_makes(tmp_path: Path) -> None:
    directory = tiny_checkpoint(tmp_path)
    config = read_config(directory)
    made = backend_of(
        config, read_weights(directory, config, torch.float32), checkpoint_digest="d", kv_budget_tokens=64
    )
    loaded = load_backend(directory, kv_budget_tokens=64)
    assert made.info.checkpoint_digest == "d"
    logits = [
        backend.forward([RowBlock(backend.allocate(8), TOKENS, ROWS, ROWS - 1)]).logits[0] for backend in (made, loaded)
    ]
    assert torch.equal(*logits)


@pytest.mark.parametrize(("dtype", "kind"), [(torch.bfloat16, BF16), (torch.float32, FP32), (torch.float32, INT8)])
def test_embeddings_looked_up_without_torch_are_torchs_bit_for_bit(dtype: torch.dtype, kind: int) -> None:
    embedding = torch.randn(50, 64, generator=torch.Generator().manual_seed(3)).to(dtype)
    rows = embedding_table(embedding_arrays(embedding, kind)).rows(np.array([4, 0, 49, 4]))
    whole = quantize_int8(embedding).values() if kind == INT8 else embedding
    assert rows.dtype == np.float32
    assert np.array_equal(rows, whole[torch.tensor([4, 0, 49, 4])].float().numpy())
