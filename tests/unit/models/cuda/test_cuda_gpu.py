"""On a GPU: the same as on a CPU, replayed as computed, with rows that keep to themselves and memory that stays flat."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.backend import KVSlot, PassResult
from models.cuda.decoder import CudaDecoder
from models.cuda.invariance import rows_are_invariant
from models.cuda.kernels import SPLIT_ROWS
from models.cuda.torch_kernels import TorchKernels
from models.load import Dtype, load_backend
from tests.helpers.cuda_decoders import cuda_decoder_of
from tests.helpers.tiny_models import tiny_checkpoint
from tests.unit.models.steps import chain, path_tokens, prefill, random_tree, tree_block

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
BUDGET = 8192
TAPS = ("layer:1", "final_norm")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(
        tmp_path_factory.mktemp("gpu"),
        "qwen3",
        hidden=256,
        layers=3,
        heads=12,
        kv_heads=4,
        head_dim=64,
        max_position_embeddings=2048,
    )


def decoder(checkpoint: Path, dtype: Dtype = "float32", **options: Any) -> CudaDecoder:
    return cuda_decoder_of(checkpoint, dtype=dtype, device="cuda", kv_budget_tokens=BUDGET, poison=True, **options)


def rounds(backend: CudaDecoder | Any, *, repeats: int = 1) -> list[torch.Tensor]:
    """Results of passes over mixed sessions, contexts within and past a split, trees committed in between, on the host."""
    rng = np.random.default_rng(1)
    slots: list[KVSlot] = [backend.allocate(900) for _ in range(4)]
    for slot, length in zip(slots, (0, 60, SPLIT_ROWS - 2, 700), strict=True):
        for start in range(0, length, 256):
            prefill(backend, slot, rng.integers(0, 97, min(256, length - start)).tolist())
    kept: list[torch.Tensor] = []
    for _ in range(2):
        trees = [random_tree(rng, rows, 97) for rows in (1, 9, 17, 4)]
        blocks = [tree_block(slot, *tree) for slot, tree in zip(slots, trees, strict=True)]
        for _ in range(repeats):
            result = backend.forward(blocks, taps=TAPS)
            kept += _on_host(result)
            for slot in slots:
                backend.rollback(slot)
        backend.forward(blocks)
        for slot, (_, parents) in zip(slots, trees, strict=True):
            backend.commit(slot, _path(parents, len(parents) - 1))
    for slot in slots:
        backend.release(slot)
    return kept


def _on_host(result: PassResult) -> list[torch.Tensor]:
    return [part.cpu().clone() for parts in (result.logits, *(result.hidden[tap] for tap in TAPS)) for part in parts]


def _path(parents: Sequence[int], row: int) -> list[int]:
    path = []
    while row >= 0:
        path.append(row)
        row = parents[row]
    return path[::-1]


@pytest.mark.parametrize("capture", [False, True])
def test_the_gpu_computes_what_the_cpu_computes(checkpoint: Path, capture: bool) -> None:
    cpu = load_backend(checkpoint, implementation="cpu-torch", kv_budget_tokens=BUDGET)
    got, expected = rounds(decoder(checkpoint, capture=capture)), rounds(cpu)
    assert all((a - b).abs().max() < 1e-3 for a, b in zip(got, expected, strict=True))


def test_tensor_cores_are_no_further_from_fp32_than_plain_torch_in_bf16(checkpoint: Path) -> None:
    exact = rounds(decoder(checkpoint))
    plain = load_backend(
        checkpoint, implementation="cuda-torch", device="cuda", dtype="bfloat16", kv_budget_tokens=BUDGET
    )

    def error(parts: list[torch.Tensor]) -> float:
        return float(sum((a - b).abs().mean() for a, b in zip(parts, exact, strict=True)))

    assert error(rounds(decoder(checkpoint, "bfloat16"))) < 1.2 * error(rounds(plain))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_replayed_passes_equal_eager_ones_bit_for_bit(checkpoint: Path, dtype: Dtype) -> None:
    captured = decoder(checkpoint, dtype)
    replayed, eager = rounds(captured, repeats=3), rounds(decoder(checkpoint, dtype, capture=False), repeats=3)
    assert captured.captured > 0
    assert all(torch.equal(a, b) for a, b in zip(replayed, eager, strict=True))


def test_results_on_the_device_outlive_the_passes_that_overwrite_their_buffers(checkpoint: Path) -> None:
    there, here = decoder(checkpoint, results="device"), decoder(checkpoint)
    rng = np.random.default_rng(2)
    slots = [backend.allocate(64) for backend in (there, here)]
    kept = []
    for _ in range(6):
        tokens, parents = random_tree(rng, 8, 97)
        kept.append(
            [b.forward([tree_block(slot, tokens, parents)]) for b, slot in zip((there, here), slots, strict=True)]
        )
        for backend, slot in zip((there, here), slots, strict=True):
            backend.rollback(slot)
    assert all(
        device.logits[0].is_cuda and torch.equal(device.logits[0].cpu(), host.logits[0]) for device, host in kept
    )


@pytest.mark.parametrize("kernels", ["chosen", "torch"])
def test_nothing_leaks_out_of_poisoned_memory(checkpoint: Path, kernels: str) -> None:
    backend = decoder(checkpoint, "bfloat16", kernels=TorchKernels() if kernels == "torch" else None)
    backend._storage._cells.fill_(torch.nan)
    assert all(torch.isfinite(part).all() for part in rounds(backend, repeats=3))


@pytest.mark.parametrize("fixed_rows", [16, 64])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_in_strict_mode_a_row_has_its_own_bits_beside_any_rows(checkpoint: Path, dtype: Dtype, fixed_rows: int) -> None:
    backend = decoder(checkpoint, dtype, fixed_rows=fixed_rows)
    assert rows_are_invariant(backend, fixed_rows)
    rng = np.random.default_rng(3)
    prefix = rng.integers(0, 97, SPLIT_ROWS - 2).tolist()
    for rows in (2, fixed_rows, 2 * fixed_rows + 5):
        tokens, parents = random_tree(rng, rows, 97)
        slots = [backend.allocate(SPLIT_ROWS + rows) for _ in range(3)]
        for slot in slots:
            prefill(backend, slot, prefix)
        logits = backend.forward([chain(slots[1], [5, 6, 7]), tree_block(slots[0], tokens, parents)]).logits[1]
        for token in path_tokens(tokens, parents, rows - 1):
            alone = prefill(backend, slots[2], [token])[-1]
        assert torch.equal(logits[rows - 1], alone)
        for slot in slots:
            backend.release(slot)


def test_memory_is_flat_over_many_captures(checkpoint: Path) -> None:
    backend = decoder(checkpoint, "bfloat16", max_graphs=6)
    slot = backend.allocate(1200)

    def sweep() -> None:
        for length in (10, 300, 600, 1000):
            backend.truncate(slot, 0)
            prefill(backend, slot, [1 + i % 90 for i in range(length)])
            for rows in (1, 2, 4, 8, 16, 32):
                for _ in range(2):
                    backend.forward([chain(slot, [3] * rows)])
                    backend.rollback(slot)

    sweep()
    sweep()
    torch.cuda.synchronize()
    before = torch.cuda.memory_reserved()
    for _ in range(4):
        sweep()
    torch.cuda.synchronize()
    assert backend.captured <= 6
    assert torch.cuda.memory_reserved() <= before + (32 << 20)
