"""The decoder for CUDA devices over a checkpoint, on a CPU too, where nobody but a test runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from models.backend import BackendInfo
from models.config import read_config
from models.cuda.decoder import CudaDecoder
from models.load import Dtype
from models.weights import read_weights


def cuda_decoder_of(
    directory: Path,
    *,
    dtype: Dtype = "float32",
    device: str = "cpu",
    kv_budget_tokens: int = 16384,
    poison: bool = False,
    **options: Any,
) -> CudaDecoder:
    """`options` go to CudaDecoder."""
    config = read_config(directory)
    info = BackendInfo(
        family=config.family,
        vocab_size=config.vocab_size,
        context_length=config.context_length,
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
        dtype=dtype,
        backend="cuda-graph",
        checkpoint_digest="test",
        row_invariant_up_to=0,
    )
    weights = read_weights(directory, config, getattr(torch, dtype)).map(lambda tensor: tensor.to(device))
    return CudaDecoder(info, config, weights, kv_budget_tokens=kv_budget_tokens, poison=poison, **options)
