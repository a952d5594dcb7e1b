"""From a checkpoint directory to a running backend."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from contracts.errors import InvalidArgument
from models.backend import Backend, BackendInfo
from models.checkpoint import digest
from models.config import read_config
from models.decoder import TorchDecoder
from models.weights import read_weights

Dtype = Literal["float32", "bfloat16"]
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_backend(
    directory: Path,
    *,
    dtype: Dtype = "float32",
    device: str = "cpu",
    kv_budget_tokens: int = 16384,
    threads: int | None = None,
    implementation: str | None = None,
    poison: bool = False,
) -> Backend:
    """Load the checkpoint in `directory`.

    threads: threads a pass may use; None for one per core. implementation: "cpu-llvm", "cpu-torch", ...; None chooses.
    poison: overwrite dead KV rows with NaN (for tests).
    Raises InvalidArgument for unsupported options, configurations and weights, DataLoss for unreadable files.
    """
    if dtype not in _DTYPES:
        raise InvalidArgument("dtype", f"{dtype!r} is not supported; known: {', '.join(_DTYPES)}")
    config = read_config(directory)
    weights = read_weights(directory, config, _DTYPES[dtype])
    info = BackendInfo(
        family=config.family,
        vocab_size=config.vocab_size,
        context_length=config.context_length,
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
        dtype=dtype,
        backend=f"{device.split(':')[0]}-torch",
        checkpoint_digest=digest(directory),
        row_invariant_up_to=0,
    )
    if implementation == "cpu-llvm":
        from models.cpu.decoder import CpuDecoder
        return CpuDecoder(info, config, weights, kv_budget_tokens=kv_budget_tokens, threads=threads, poison=poison)
    weights = weights.map(lambda tensor: tensor.to(device))
    return TorchDecoder(info, config, weights, kv_budget_tokens=kv_budget_tokens, poison=poison)
