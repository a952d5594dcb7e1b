"""From a checkpoint directory to a running backend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch

from contracts.errors import InvalidArgument
from models.backend import Backend, BackendInfo
from models.build import build_of
from models.checkpoint import digest
from models.config import FAMILIES, DecoderConfig, model_type, read_config
from models.cuda.device import known_device, require_device
from models.decoder import TorchDecoder
from models.exact_codes import exact_codes
from models.weights import DecoderWeights, read_weights

Dtype = Literal["float32", "bfloat16", "int8", "int4"]
# auto: see `chosen_dtype`.
DtypeChoice = Dtype | Literal["auto"]
Implementation = Literal["cpu-llvm", "cpu-torch", "cuda-graph", "cuda-torch", "transformers"]

# What weights are read as; those that are quantised afterwards, as they are stored.
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": None, "int4": None}
_IMPLEMENTATIONS = {
    "cpu": ("cpu-llvm", "cpu-torch", "transformers"),
    "cuda": ("cuda-graph", "cuda-torch", "transformers"),
}

# Rows for which the LLVM pass is row-invariant: no number of rows breaks it, so the bound is merely large.
_ANY_ROWS = 1 << 30


def load_backend(
    directory: Path,
    *,
    dtype: DtypeChoice = "float32",
    device: str = "cpu",
    kv_budget_tokens: int = 16384,
    threads: int | None = None,
    implementation: Implementation | None = None,
    fixed_rows: int | None = None,
    packed_dir: Path | None = None,
    poison: bool = False,
) -> Backend:
    """Load the checkpoint in `directory`.

    dtype: of the weights; all but "float32" round them. The LLVM pass computes in fp32 from each; the torch pass computes in
        the weights' dtype throughout, as Transformers does, and has no "int8" and "int4" (models/quantized.py). "auto": as
        `chosen_dtype` chooses.
    device: a torch device. kv_budget_tokens: KV rows all slots together may reserve.
    threads: threads of the LLVM pass; None for one per core this process may run on.
    implementation: None chooses the LLVM pass on a CPU, except for bf16 on one with AMX, which only torch uses, captured
        passes on a GPU ("cuda-torch" is the eager reference there), and for families that have no decoder here
        "transformers", the slower fallback (see `models.fallback`).
    fixed_rows: of "cuda-graph", strict mode: rows that every pass is padded or cut to (see models.cuda.decoder).
    packed_dir: where the LLVM pass keeps its weights as it reads them, for the next start; None: nowhere.
    poison: overwrite dead KV rows with NaN (for tests).
    Raises InvalidArgument for unsupported options, configurations and weights, DataLoss for unreadable files, and
    FailedPrecondition for a device that is not here, or one on which strict mode does not hold.
    """
    if dtype not in (*_DTYPES, "auto"):
        raise InvalidArgument("dtype", f"{dtype!r} is not supported; known: {', '.join(_DTYPES)}, auto")
    kind = known_device(device).type
    if implementation is None:
        require_device(device)
    if dtype == "auto":
        dtype = chosen_dtype(directory, device, implementation)
    chosen = implementation or (_choose(dtype, device) if model_type(directory) in FAMILIES else "transformers")
    known = _IMPLEMENTATIONS[kind]
    if chosen not in known:
        raise InvalidArgument("implementation", f"{chosen!r} does not run on {device!r}; known: {', '.join(known)}")
    stored_as = _DTYPES[dtype]
    if stored_as is None and chosen != "cpu-llvm":
        raise InvalidArgument("dtype", f"{dtype!r} is computed by cpu-llvm only, not by {chosen}")
    if fixed_rows is not None and chosen != "cuda-graph":
        raise InvalidArgument("fixed_rows", f"{chosen!r} has no strict mode; known: cuda-graph")
    require_device(device)
    if stored_as is not None and chosen == "transformers":
        # Importing Transformers takes seconds: only who computes with it pays.
        from models.fallback.loading import load_fallback

        return load_fallback(
            directory, dtype=stored_as, device=device, kv_budget_tokens=kv_budget_tokens, poison=poison
        )
    config = read_config(directory)
    return _backend(
        config,
        lambda: read_weights(directory, config, stored_as),
        chosen,
        digest(directory),
        dtype,
        device,
        kv_budget_tokens,
        threads=threads,
        fixed_rows=fixed_rows,
        packed_dir=packed_dir,
        poison=poison,
    )


def chosen_dtype(directory: Path, device: str = "cpu", implementation: Implementation | None = None) -> Dtype:
    """What "auto" stands for: int4 or int8 where the LLVM pass would run and the checkpoint's values are such codes, so that
    nothing is lost, and bfloat16 elsewhere. Raises what reading the checkpoint raises.
    """
    if implementation is None and model_type(directory) in FAMILIES:
        implementation = _choose("bfloat16", device)
    return (exact_codes(directory) if implementation == "cpu-llvm" else None) or "bfloat16"


def backend_of(
    config: DecoderConfig,
    weights: DecoderWeights,
    *,
    checkpoint_digest: str,
    kv_budget_tokens: int,
    device: str = "cpu",
    threads: int | None = None,
    poison: bool = False,
) -> Backend:
    """A backend over weights at hand, which need not be a whole checkpoint: a draft head's layer is one too.

    All matrices have one dtype, float32 or bfloat16. Options and errors as `load_backend`.
    """
    dtype: Dtype = "bfloat16" if weights.embedding.dtype == torch.bfloat16 else "float32"
    require_device(device)
    chosen = _choose(dtype, device)
    return _backend(
        config,
        lambda: weights,
        chosen,
        checkpoint_digest,
        dtype,
        device,
        kv_budget_tokens,
        threads=threads,
        poison=poison,
    )


def _backend(
    config: DecoderConfig,
    read: Callable[[], DecoderWeights],
    implementation: Implementation,
    checkpoint_digest: str,
    dtype: Dtype,
    device: str,
    kv_budget_tokens: int,
    *,
    threads: int | None,
    poison: bool,
    fixed_rows: int | None = None,
    packed_dir: Path | None = None,
) -> Backend:
    info = BackendInfo(
        family=config.family,
        vocab_size=config.vocab_size,
        context_length=config.context_length,
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
        dtype=dtype,
        backend=implementation,
        checkpoint_digest=checkpoint_digest,
        row_invariant_up_to=_ANY_ROWS if implementation == "cpu-llvm" else 0,
        build=build_of(implementation) + ("" if fixed_rows is None else f", passes of {fixed_rows} rows"),
    )
    if implementation == "cpu-llvm":
        # Compiling takes seconds where nothing is cached: only who computes with it pays.
        from models.cpu.decoder import CpuDecoder
        from models.cpu.formats import FORMATS
        from models.cpu.packed_file import packed_weights
        from models.cpu.weights import cpu_weights

        packed = packed_weights(
            packed_dir, checkpoint_digest, dtype, lambda: cpu_weights(read(), config, FORMATS[dtype])
        )
        return CpuDecoder(info, config, packed, kv_budget_tokens=kv_budget_tokens, threads=threads, poison=poison)
    weights = read().map(lambda tensor: tensor.to(device))
    if implementation == "cuda-graph":
        from models.cuda.invariance import cuda_decoder

        return cuda_decoder(
            info, config, weights, kv_budget_tokens=kv_budget_tokens, fixed_rows=fixed_rows, poison=poison
        )
    return TorchDecoder(info, config, weights, kv_budget_tokens=kv_budget_tokens, poison=poison)


def _choose(dtype: Dtype, device: str) -> Implementation:
    if torch.device(device).type != "cpu":
        return "cuda-graph"
    if dtype == "bfloat16" and torch.cpu._is_amx_tile_supported():
        return "cpu-torch"
    return "cpu-llvm"
