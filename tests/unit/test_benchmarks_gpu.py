"""The GPU benchmark's arithmetic and its refusal; its passes run on a CPU in the same code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import benchmarks.gpu as gpu


@pytest.fixture
def app() -> gpu.typer.Typer:
    made = gpu.typer.Typer()
    made.command()(gpu.main)
    return made


TINY = gpu.Shape(vocab=60, hidden=24, inner=40, layers=2, heads=3, kv_heads=1, head_dim=8)


def weights_of(shape: gpu.Shape) -> gpu.DecoderWeights:
    generator = torch.Generator().manual_seed(0)
    return gpu.random_weights(shape, lambda *sizes: torch.randn(sizes, generator=generator))


def test_ratios_are_taken_within_a_repeat_and_headlines_are_the_worst_over_contexts() -> None:
    def unit(bandwidth: float, slow: float) -> gpu.Unit:
        ms = {("graph", context, rows): slow * (1 + rows / 16) for context in (256, 1024) for rows in gpu.ROWS}
        ms["graph", 1024, 16] = slow * 4
        return gpu.Unit(bandwidth, ms)

    # 1e9 bytes at 1e12 bytes/s take 1 ms; the second repeat is twice as slow in everything.
    got = gpu.figures([unit(1e12, 1.0), unit(5e11, 2.0), unit(1e12, 1.0)], 10**9)
    assert got["bound_ms"] == pytest.approx(1.0)
    assert got["pass_over_bound_graph_16"] == pytest.approx(4.0)
    assert got["pass_over_bound_graph_1"] == pytest.approx(1 + 1 / 16)
    assert got["rows16_over_rows1_graph"] == pytest.approx(4 / (1 + 1 / 16))
    assert got["ms_graph_256_16"] == pytest.approx(2.0)


def test_the_bound_counts_what_is_multiplied_by_and_not_what_is_looked_up() -> None:
    qkv, out, gate_up, down = 24 * (24 + 16), 24 * 24, 24 * 80, 40 * 24
    assert gpu.multiplied_bytes(weights_of(TINY)) == 4 * (2 * (qkv + out + gate_up + down) + 60 * 24)


@pytest.mark.parametrize("rows", gpu.ROWS)
def test_trees_are_well_formed_passes(rows: int) -> None:
    backend = gpu.TorchDecoder(
        gpu.BackendInfo("llama", 60, 4160, 24, 2, "float32", "cpu-torch", "random", 0),
        TINY.config,
        weights_of(TINY),
        kv_budget_tokens=64,
    )
    block = gpu.tree(backend.allocate(64), rows, 60, np.random.default_rng(0))
    assert backend.forward([block]).logits[0].shape == (rows, 60)


def test_every_way_is_measured_in_every_cell_of_every_repeat() -> None:
    made = gpu.backends(TINY, weights_of(TINY), "float32")
    units = list(gpu.measure(made, lambda: 1e9, 2, (40,), (1, 16)))
    assert len(units) == 2
    assert {frozenset(unit.ms) for unit in units} == {
        frozenset((way, 40, rows) for way in gpu.WAYS for rows in (1, 16))
    }


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_without_a_gpu_it_refuses_and_writes_nothing(app: gpu.typer.Typer, tmp_path: Path, device: str) -> None:
    target = tmp_path / "gpu.json"
    result = CliRunner().invoke(app, ["--quick", "--json", str(target), "--device", device])
    assert result.exit_code == 2
    assert "measures a GPU" in result.output
    assert not target.exists()
