"""The decoder for GPUs, run on a CPU, against the other two: long contexts, windows, mixed sessions, strict mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contracts.errors import FailedPrecondition, InvalidArgument
from models.backend import Backend, PrefixBackend, RowBlock
from models.config import read_config
from models.cuda.decoder import CudaDecoder
from models.cuda.invariance import ANY_ROWS, cuda_decoder, rows_are_invariant
from models.cuda.kernels import SPLIT_ROWS, View
from models.cuda.torch_kernels import TorchKernels
from models.load import load_backend
from models.weights import read_weights
from tests.helpers.cuda_decoders import cuda_decoder_of
from tests.helpers.tiny_models import tiny_checkpoint
from tests.unit.models.steps import chain, path_tokens, prefill, random_tree, tree_block

BUDGET = 4096
KINDS: dict[str, dict[str, Any]] = {
    "llama": {"hidden": 48, "heads": 6, "kv_heads": 2, "head_dim": 8},
    "mistral": {"sliding_window": 280},
    "qwen3": {"head_dim": 12},
    "qwen2": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = tmp_path_factory.mktemp("cuda")
    return {
        name: tiny_checkpoint(made, name, max_position_embeddings=1024, **options) for name, options in KINDS.items()
    }


@pytest.fixture(scope="module")
def llama(checkpoints: dict[str, Path]) -> CudaDecoder:
    return cuda_decoder_of(checkpoints["llama"], kv_budget_tokens=BUDGET, poison=True)


def difference(left: list[torch.Tensor], right: list[torch.Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("fixed_rows", [None, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_mixed_sessions_with_long_contexts_equal_both_other_decoders(
    checkpoints: dict[str, Path], kind: str, fixed_rows: int | None
) -> None:
    """Trees grown over two passes, commits that move rows, contexts within, at and past splits, one of nothing."""
    directory = checkpoints[kind]
    others: list[Backend] = [load_backend(directory, implementation="cpu-torch", kv_budget_tokens=BUDGET, poison=True)]
    if kind == "qwen2":
        others.append(load_backend(directory, implementation="cpu-llvm", kv_budget_tokens=BUDGET, poison=True))
    own = cuda_decoder_of(directory, kv_budget_tokens=BUDGET, poison=True, fixed_rows=fixed_rows)
    results = []
    for backend in (own, *others):
        rng = np.random.default_rng(1)
        vocab, got = backend.info.vocab_size, []
        slots = [backend.allocate(700) for _ in range(4)]
        for slot, length in zip(slots, (0, 251, 256, 530), strict=True):
            if length:
                prefill(backend, slot, rng.integers(0, vocab, length).tolist())
        for _ in range(2):
            trees = [random_tree(rng, rows, vocab) for rows in (1, 9, 14, 4)]
            blocks = [tree_block(slot, *tree) for slot, tree in zip(slots, trees, strict=True)]
            result = backend.forward(blocks, taps=("final_norm", "layer:0"))
            got += [*result.logits, *result.hidden["layer:0"], *result.hidden["final_norm"]]
            # A second level under row 8, asked for out of order and twice.
            depth = len(path_tokens(*trees[1], 8))
            wanted = np.array([1, 0, 1])
            more = RowBlock(
                slots[1], np.array([5, 6]), np.full(2, slots[1].length + depth), np.array([8, 8]), logits_for=wanted
            )
            got += backend.forward([more]).logits
            for slot, (_, parents) in zip(slots, trees, strict=True):
                row, path = len(parents) - 1, []
                while row >= 0:
                    path.append(row)
                    row = parents[row]
                backend.commit(slot, path[::-1])
        results.append([one.clone() for one in got])
    for other in results[1:]:
        assert difference(results[0], other) < 1e-4


def test_forks_parked_donors_and_truncation_keep_the_context(llama: CudaDecoder) -> None:
    assert isinstance(llama, PrefixBackend)
    tokens = np.random.default_rng(2).integers(0, 97, 300).tolist()
    donor = llama.allocate(330)
    prefill(llama, donor, tokens)
    fork = llama.fork(donor, 270, 330)
    llama.park(donor, 280)
    prefill(llama, fork, tokens[270:290])
    llama.truncate(fork, 285)
    fresh = llama.allocate(330)
    prefill(llama, fresh, tokens[:285])
    ends = [llama.forward([chain(slot, [4, 5])]).logits[0] for slot in (fork, fresh)]
    assert difference(ends[:1], ends[1:]) < 1e-4
    for slot in (donor, fork, fresh):
        llama.release(slot)
    assert llama.usage.free_tokens == llama.usage.total_tokens


def test_padding_rows_change_nothing_that_a_slot_holds(llama: CudaDecoder) -> None:
    """All pages are handed out and hold rows; passes of 3 rows are padded to 4 and must write elsewhere."""
    slots = [llama.allocate(BUDGET // 16) for _ in range(16)]
    for index, slot in enumerate(slots):
        prefill(llama, slot, [index, 3, 5])
    before = llama._storage._cells[:, :, : llama._storage.scratch].clone()
    llama.forward([tree_block(slots[7], [1, 2, 3], [-1, -1, -1])])
    after = llama._storage._cells[:, :, : llama._storage.scratch]
    changed = (before.nan_to_num(7.5) != after.nan_to_num(7.5)).any(dim=(0, 1, 3, 4)).nonzero().flatten()
    assert changed.tolist() == slots[7].rows(3, 6).tolist()  # type: ignore[attr-defined]
    for slot in slots:
        llama.release(slot)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_in_strict_mode_a_row_has_its_own_bits_beside_any_rows(checkpoints: dict[str, Path], dtype: Any) -> None:
    backend = cuda_decoder_of(checkpoints["llama"], dtype=dtype, kv_budget_tokens=BUDGET, fixed_rows=16)
    rng = np.random.default_rng(3)
    tokens, parents = random_tree(rng, 37, 97)
    prefix = rng.integers(0, 97, SPLIT_ROWS - 2).tolist()
    slot = backend.allocate(320)
    prefill(backend, slot, prefix)
    logits = backend.forward([tree_block(slot, tokens, parents)]).logits[0]
    alone = backend.allocate(320)
    for row in (0, 20, 36):
        backend.truncate(alone, 0)
        prefill(backend, alone, prefix)
        for token in path_tokens(tokens, parents, row):
            last = prefill(backend, alone, [token])[-1]
        assert torch.equal(logits[row], last)


class Leaky(TorchKernels):
    """Attention in which a row's bits depend on how many rows are in the pass."""

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, view: View, window: int | None
    ) -> torch.Tensor:
        own = super().attend(query, keys, values, view, window)
        return own + 1e-6 * (view.ends > 0).sum()


def test_strict_mode_is_claimed_only_where_it_was_tried_and_held(
    checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = checkpoints["llama"]
    plain = cuda_decoder_of(directory, kv_budget_tokens=BUDGET)
    config = read_config(directory)
    weights = read_weights(directory, config, torch.float32)

    def claimed(fixed_rows: int | None) -> CudaDecoder:
        return cuda_decoder(plain.info, config, weights, kv_budget_tokens=BUDGET, fixed_rows=fixed_rows, poison=True)

    assert claimed(None).info.row_invariant_up_to == 0
    strict = claimed(8)
    assert strict.info.row_invariant_up_to == ANY_ROWS
    assert strict.usage.free_tokens == strict.usage.total_tokens
    monkeypatch.setattr("models.cuda.decoder._kernels", lambda device: Leaky())
    with pytest.raises(FailedPrecondition, match="depend on the rows beside it"):
        claimed(8)


def test_a_number_of_rows_that_is_no_bucket_is_refused(checkpoints: dict[str, Path]) -> None:
    with pytest.raises(InvalidArgument, match="24 is no row bucket; known: 1, 2, 4"):
        cuda_decoder_of(checkpoints["llama"], fixed_rows=24)


def test_the_probe_sees_a_pass_whose_products_change_with_its_rows(checkpoints: dict[str, Path]) -> None:
    leaky = cuda_decoder_of(checkpoints["llama"], kv_budget_tokens=BUDGET, fixed_rows=8, kernels=Leaky())
    assert not rows_are_invariant(leaky, 8)
