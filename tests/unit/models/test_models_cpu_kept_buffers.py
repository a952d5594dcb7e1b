"""Passes on CPUs compute in buffers that stay: nothing of a pass shows in the next, and no result changes after it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from models.backend import Backend, PassResult
from models.cpu.decoder import CpuDecoder
from models.cpu.helpers import Job
from models.host_rows import HostRows, rows_at
from models.load import Dtype
from tests.helpers.tiny_models import tiny_checkpoint
from tests.unit.models.steps import chain, load_on_cpu, prefill, random_tree, tree_block

TAPS = ("layer:0", "final_norm", "layer:1")
TOKENS = np.random.default_rng(3).integers(0, 97, 300).tolist()


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """No width of it fills whole panels."""
    return tiny_checkpoint(tmp_path_factory.mktemp("odd"), hidden=40, head_dim=10, layers=2)


def outcome(result: PassResult) -> list[torch.Tensor]:
    return [*result.logits, *(rows for tap in TAPS for rows in result.hidden[tap])]


def probe(backend: Backend, rows: int, committed: int = 0) -> list[torch.Tensor]:
    """Everything that a pass over two slots gives, one of them grown in two steps; the slots go again."""
    tokens, parents = random_tree(np.random.default_rng(rows), rows, 97)
    slots = [backend.allocate(committed + rows + 1) for _ in range(2)]
    if committed:
        prefill(backend, slots[1], TOKENS[:committed])
    backend.forward([chain(slots[0], [7])])
    second = tree_block(slots[1], tokens, parents, wanted=[rows - 1, 0])
    first = tree_block(slots[0], tokens, parents)
    grown = [parent + 1 for parent in parents]
    first = type(first)(slots[0], first.token_ids, first.positions + 1, np.array(grown))
    result = backend.forward([first, second], taps=TAPS)
    for slot in slots:
        backend.release(slot)
    return outcome(result)


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True)) and bool(torch.isfinite(left[0]).all())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_pass_gives_what_a_new_backend_gives_whatever_ran_before_it(odd: Path, tmp_path: Path, dtype: Dtype) -> None:
    # Codes come in groups of 32.
    directory = tiny_checkpoint(tmp_path, hidden=64, intermediate_size=96) if dtype == "int8" else odd
    used = load_on_cpu(directory, implementation="cpu-llvm", dtype=dtype, kv_budget_tokens=2048)
    for rows, committed in ((3, 0), (40, 5), (2, 290), (40, 120), (1, 0), (3, 0)):
        fresh = load_on_cpu(directory, implementation="cpu-llvm", dtype=dtype, kv_budget_tokens=2048)
        assert same(probe(used, rows, committed), probe(fresh, rows, committed)), (rows, committed)


def test_rows_that_are_no_numbers_leave_nothing_behind(odd: Path) -> None:
    backend = load_on_cpu(odd, implementation="cpu-llvm", kv_budget_tokens=256)
    before = probe(backend, 5)
    slot = backend.allocate(5)
    block = chain(slot, [1, 2, 3, 4, 5])
    nothing = torch.full((5, 40), torch.nan)
    spoilt = backend.forward([type(block)(slot, block.token_ids, block.positions, block.parents, inputs=nothing)])
    assert torch.isnan(spoilt.logits[0]).all()
    backend.release(slot)
    assert same(before, probe(backend, 5))


def test_results_stay_as_they_are_when_other_passes_follow(odd: Path) -> None:
    backend = load_on_cpu(odd, implementation="cpu-llvm", kv_budget_tokens=256)
    held = probe(backend, 6)
    copies = [rows.clone() for rows in held]
    probe(backend, 6)
    probe(backend, 20)
    assert same(held, copies)


class _Late:
    """A helper that comes when it is let: as on a machine that is busy with something else."""

    def __init__(self) -> None:
        self._waiting: list[Job] = []

    def hand_out(self, job: Job, count: int) -> None:
        self._waiting.extend([job] * count)

    def come(self) -> None:
        for job in self._waiting:
            job(1)
        self._waiting.clear()


def test_a_helper_that_comes_when_its_pass_is_over_changes_nothing(odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = load_on_cpu(odd, implementation="cpu-llvm", kv_budget_tokens=256)
    assert isinstance(backend, CpuDecoder)
    expected = {rows: probe(backend, rows) for rows in (3, 9)}
    late = _Late()
    monkeypatch.setattr(backend, "_helpers", late)
    first, second = probe(backend, 9), probe(backend, 3)
    late.come()
    assert same(first, expected[9])
    assert same(second, expected[3])
    assert same(probe(backend, 9), expected[9])


def test_rows_of_a_pass_are_read_as_arrays_without_tensors_over_them(odd: Path) -> None:
    backend = load_on_cpu(odd, implementation="cpu-llvm", kv_budget_tokens=64)
    result = backend.forward([chain(backend.allocate(4), [3, 1])], taps=TAPS)
    for blocks in (result.logits, *result.hidden.values()):
        assert isinstance(blocks, HostRows)
        array = rows_at(blocks, 0)
        assert isinstance(array, np.ndarray)
        assert np.shares_memory(array, blocks[0].numpy())
        assert [rows.shape for rows in blocks[:]] == [array.shape]
    tensor = torch.ones(2)
    assert rows_at([tensor], 0) is tensor
