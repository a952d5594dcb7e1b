"""Pass times on a GPU, beside what reading the weights must take: `python -m benchmarks.gpu [--quick] --json FILE`.

Weights are random, in the shapes of known models (a pass takes as long with any weights), so no checkpoint is needed. Ways:
`graph` (captured passes, as served), `eager` (the same passes launched one kernel at a time), `strict` (captured, every pass
of 64 rows), `torch` (the reference, plain operators). The device's read bandwidth is measured in the same repeat as the
passes; the bound of a pass is the bytes of the matrices it multiplies by over that bandwidth, whatever the rows. A pass is
timed from the call until its logits are on the host.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from rich.console import Console
from torch import Tensor

from benchmarks.figures import write
from contracts.errors import DraftproofError
from models.backend import Backend, BackendInfo, KVSlot, RowBlock
from models.config import DecoderConfig
from models.cuda.decoder import CudaDecoder
from models.cuda.device import require_device
from models.decoder import TorchDecoder
from models.rope import RopeSpec
from models.weights import DecoderWeights, LayerWeights

ROWS = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (256, 1024, 4096)
STRICT_ROWS = 64
WAYS = ("graph", "eager", "strict", "torch")
_CHUNK = 256
_READ_BYTES = 2 << 30


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama, with an untied head."""

    vocab: int
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def config(self) -> DecoderConfig:
        return DecoderConfig(
            family="llama",
            vocab_size=self.vocab,
            hidden_size=self.hidden,
            intermediate_size=self.inner,
            num_layers=self.layers,
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            rms_eps=1e-5,
            context_length=max(CONTEXTS) + max(ROWS),
            rope=RopeSpec("default", 500_000.0, self.head_dim),
            windows=(None,) * self.layers,
            qkv_bias=False,
            o_bias=False,
            qk_norm=False,
            tied_head=False,
        )


SHAPES = {
    "135m": Shape(49_152, 576, 1536, 30, 9, 3, 64),
    "1b": Shape(128_256, 2048, 8192, 16, 32, 8, 64),
    "8b": Shape(128_256, 4096, 14_336, 32, 32, 8, 128),
}


@dataclass(frozen=True)
class Unit:
    """One repeat: read bandwidth in bytes/s, and milliseconds by (way, context, rows)."""

    bandwidth: float
    ms: Mapping[tuple[str, int, int], float]


def random_weights(shape: Shape, make: Callable[..., Tensor]) -> DecoderWeights:
    """make(*sizes): a random matrix in the dtype and on the device wanted; norms are ones of its like."""
    width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    ones = torch.ones_like(make(shape.hidden))

    def layer() -> LayerWeights:
        return LayerWeights(
            attention_norm=ones,
            qkv=make(width + 2 * kv_width, shape.hidden),
            qkv_bias=None,
            q_norm=None,
            k_norm=None,
            out=make(shape.hidden, width),
            out_bias=None,
            mlp_norm=ones,
            gate_up=make(2 * shape.inner, shape.hidden),
            down=make(shape.hidden, shape.inner),
        )

    layers = tuple(layer() for _ in range(shape.layers))
    return DecoderWeights(make(shape.vocab, shape.hidden), layers, ones, make(shape.vocab, shape.hidden))


def multiplied_bytes(weights: DecoderWeights) -> int:
    """Bytes of the matrices a pass multiplies by: embeddings are looked up, not read."""
    matrices = [m for one in weights.layers for m in (one.qkv, one.out, one.gate_up, one.down)]
    return sum(matrix.nbytes for matrix in (*matrices, weights.head))


def tree(slot: KVSlot, rows: int, vocab: int, generator: np.random.Generator) -> RowBlock:
    """A binary tree under the anchor, all logits wanted, as a verification pass has them."""
    parents = (np.arange(rows, dtype=np.int64) + 1) // 2 - 1
    depth = np.floor(np.log2(np.arange(1, rows + 1))).astype(np.int64)
    return RowBlock(slot, generator.integers(0, vocab, rows), slot.length + depth, parents)


def figures(units: Sequence[Unit], weight_bytes: int) -> dict[str, float | int | str | bool]:
    """Medians over the repeats; ratios are taken within each. The headline figures are the worst over contexts."""
    cells = sorted(units[0].ms)
    bound = [1e3 * weight_bytes / unit.bandwidth for unit in units]
    out: dict[str, float | int | str | bool] = {
        "repeats": len(units),
        "weight_bytes": weight_bytes,
        "read_gb_per_s": statistics.median(unit.bandwidth for unit in units) / 1e9,
        "bound_ms": statistics.median(bound),
    }
    for way, context, rows in cells:
        out[f"ms_{way}_{context}_{rows}"] = statistics.median(unit.ms[way, context, rows] for unit in units)
    contexts = sorted({context for _, context, _ in cells})
    for way in dict.fromkeys(way for way, _, _ in cells):
        for rows in (1, 16, 64):
            ratios = [
                statistics.median(unit.ms[way, context, rows] / low for unit, low in zip(units, bound, strict=True))
                for context in contexts
            ]
            out[f"pass_over_bound_{way}_{rows}"] = max(ratios)
        for rows in (16, 64):
            out[f"rows{rows}_over_rows1_{way}"] = max(
                statistics.median(unit.ms[way, context, rows] / unit.ms[way, context, 1] for unit in units)
                for context in contexts
            )
    return out


def read_bandwidth(device: torch.device) -> float:
    """Bytes/s of the better of a few sums over memory far larger than the caches."""
    values = torch.ones(_READ_BYTES // 4, device=device)
    best = float("inf")
    for _ in range(5):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        total = values.sum()
        stop.record()
        torch.cuda.synchronize(device)
        if not float(total) > 0:
            raise RuntimeError("the sum of ones is wrong")
        best = min(best, start.elapsed_time(stop) / 1e3)
    return _READ_BYTES / best


def backends(shape: Shape, weights: DecoderWeights, dtype: str) -> dict[str, Backend]:
    """One backend a way over the same weights."""
    config = shape.config
    info = BackendInfo(
        "llama", shape.vocab, config.context_length, shape.hidden, shape.layers, dtype, "cuda-graph", "random", 0
    )
    budget = sum(CONTEXTS) + len(CONTEXTS) * 2 * max(ROWS)
    return {
        "graph": CudaDecoder(info, config, weights, kv_budget_tokens=budget),
        "eager": CudaDecoder(info, config, weights, kv_budget_tokens=budget, capture=False),
        "strict": CudaDecoder(info, config, weights, kv_budget_tokens=budget, fixed_rows=STRICT_ROWS),
        "torch": TorchDecoder(info, config, weights, kv_budget_tokens=budget),
    }


def measure(
    made: Mapping[str, Backend],
    bandwidth: Callable[[], float],
    repeats: int,
    contexts: Sequence[int],
    rows: Sequence[int],
) -> Iterator[Unit]:
    """Units; cells in random order within each, so that drift falls on all of them."""
    generator = np.random.default_rng(0)
    vocab = next(iter(made.values())).info.vocab_size
    slots: dict[tuple[str, int], KVSlot] = {}
    for way, backend in made.items():
        for context in contexts:
            slot = slots[way, context] = backend.allocate(context + max(rows))
            for start in range(0, context, _CHUNK):
                ids = generator.integers(0, vocab, min(_CHUNK, context - start))
                at = np.arange(len(ids))
                backend.forward([RowBlock(slot, ids, start + at, at - 1, at[:0])])
                backend.commit(slot, at.tolist())
    cells = [(way, context, count) for way in made for context in contexts for count in rows]

    def timed(way: str, context: int, count: int) -> float:
        block = tree(slots[way, context], count, vocab, generator)
        started = time.perf_counter()
        logits = made[way].forward([block]).logits[0]
        logits.cpu()
        took = 1e3 * (time.perf_counter() - started)
        made[way].rollback(block.slot)
        return took

    # Twice: compiled by the first, captured by the second.
    for _ in range(2):
        for cell in cells:
            timed(*cell)
    for _ in range(repeats):
        read = bandwidth()
        order = [cells[index] for index in generator.permutation(len(cells)).tolist()]
        yield Unit(read, {cell: statistics.median(timed(*cell) for _ in range(3)) for cell in order})


def main(
    quick: Annotated[bool, typer.Option(help="fewer repeats, the smallest shape only")] = False,
    json: Annotated[Path | None, typer.Option(help="where the figures go")] = None,
    device: Annotated[str, typer.Option(help="cuda or cuda:N")] = "cuda",
    shapes: Annotated[str, typer.Option(help=f"of {', '.join(SHAPES)}, joined by commas")] = ",".join(SHAPES),
) -> None:
    """Refuses, with exit status 2, where no GPU is."""
    console = Console()
    try:
        there = require_device(device)
    except DraftproofError as error:
        console.print(f"benchmarks.gpu measures a GPU and there is none to measure: {error}")
        raise typer.Exit(2) from error
    if there.type != "cuda":
        console.print(f"benchmarks.gpu measures a GPU, and {device!r} is none")
        raise typer.Exit(2)
    out: dict[str, float | int | str | bool] = {"device": torch.cuda.get_device_name(there), "torch": torch.__version__}
    for name in ("135m",) if quick else shapes.split(","):
        scale = SHAPES[name].hidden ** -0.5

        def make(*sizes: int, scale: float = scale) -> Tensor:
            return (torch.randn(sizes, device=there, dtype=torch.bfloat16) * scale).contiguous()

        with torch.cuda.device(there), torch.inference_mode():
            weights = random_weights(SHAPES[name], make)
            made = backends(SHAPES[name], weights, "bfloat16")
            units = list(measure(made, lambda: read_bandwidth(there), 5 if quick else 20, CONTEXTS, ROWS))
            out |= {f"{name}_{key}": value for key, value in figures(units, multiplied_bytes(weights)).items()}
            del weights, made
            torch.cuda.empty_cache()
    write(out, json, console, "passes on a GPU")


if __name__ == "__main__":
    typer.run(main)
