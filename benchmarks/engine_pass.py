"""Phase `pass`: what one target pass takes, beside what reading its weights must take.

The bandwidth is measured in the same repeat as the passes (both cores sum an array far larger than the caches), so that
drift of a shared machine hits both. The bound of a pass is the weights' bytes over that bandwidth, whatever the rows. Beside
`rows16_over_rows1` stands what the cores' arithmetic alone would take of 16 rows, at the rate measured in the same repeat
(`rows16_over_rows1_floor`).
"""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numba
import numpy as np
from rich.progress import Progress
from safetensors import safe_open

from benchmarks.engine_ceiling import Ceiling
from benchmarks.engine_load import Others
from benchmarks.engine_records import Records
from models.backend import Backend, KVSlot, RowBlock
from models.load import Dtype, load_backend

CORES = 2
ROWS = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (256, 1024)
DTYPES: tuple[Dtype, ...] = ("bfloat16", "float32")
_ARRAY_BYTES = 1 << 30
_SWEEPS = 2
# A repeat is quiet if other processes took at most this share of the cores' time; fewer than these are not kept apart.
QUIET = 0.05
_ENOUGH = 5
_CHUNK = 64


@dataclass(frozen=True)
class PassPlan:
    """repeats: of the whole table, by dtype."""

    repeats: int


@numba.njit(nogil=True)
def _sum(values):  # type: ignore[no-untyped-def]
    total = 0
    for index in range(values.shape[0]):
        total += values[index]
    return total


class Bandwidth:
    """Reads memory with all cores at once."""

    def __init__(self) -> None:
        self._shares = np.array_split(np.ones(_ARRAY_BYTES // 8, dtype=np.int64), CORES)
        self._pool = ThreadPoolExecutor(CORES)
        _sum(self._shares[0][:1024])

    def bytes_per_s(self) -> float:
        """The better of a few sweeps."""
        best = float("inf")
        for _ in range(_SWEEPS):
            started = time.perf_counter()
            if sum(self._pool.map(_sum, self._shares)) != _ARRAY_BYTES // 8:
                raise RuntimeError("the sum of ones is wrong")
            best = min(best, time.perf_counter() - started)
        return _ARRAY_BYTES / best


def weight_bytes(checkpoint: Path, itemsize: int) -> int:
    """Bytes of the matrices that a pass multiplies by: an untied input embedding is looked up, not read."""
    with safe_open(checkpoint / "model.safetensors", "pt") as file:
        names = list(file.keys())
        shapes = {name: file.get_slice(name).get_shape() for name in names}
    looked_up = {"model.embed_tokens.weight"} if "lm_head.weight" in shapes else set()
    return sum(
        itemsize * int(np.prod(shape)) for name, shape in shapes.items() if len(shape) == 2 and name not in looked_up
    )


def filled_slot(backend: Backend, context: int, generator: np.random.Generator) -> KVSlot:
    slot = backend.allocate(context + max(ROWS))
    for start in range(0, context, _CHUNK):
        ids = generator.integers(100, 40_000, min(_CHUNK, context - start))
        rows = np.arange(len(ids))
        backend.forward([RowBlock(slot, ids, start + rows, rows - 1, np.empty(0, dtype=np.int64))])
        backend.commit(slot, rows.tolist())
    return slot


def binary_tree(slot: KVSlot, rows: int, generator: np.random.Generator) -> RowBlock:
    """A binary tree under the anchor, all logits wanted, as a verification pass has them."""
    parents = (np.arange(rows, dtype=np.int64) + 1) // 2 - 1
    depths = np.zeros(rows, dtype=np.int64)
    for row in range(1, rows):
        depths[row] = depths[parents[row]] + 1
    return RowBlock(slot, generator.integers(100, 40_000, rows), slot.length + depths, parents)


def measure(records: Records, plan: PassPlan, checkpoint: Path, progress: Progress) -> None:
    """Adds one unit per dtype and repeat: {"bandwidth": bytes/s, "ms": {"context/rows": ms}, "others": share,
    "products": multiply-adds/s}."""
    bandwidth, ceiling = Bandwidth(), Ceiling(CORES)
    for dtype in DTYPES:
        keys = [f"pass/{dtype}/{repeat:03}" for repeat in range(plan.repeats)]
        task = progress.add_task(f"pass, {dtype}", total=len(keys))
        if not any(records.wants(key) for key in keys):
            continue
        generator = np.random.default_rng(6)
        backend = load_backend(checkpoint, dtype=dtype, kv_budget_tokens=sum(CONTEXTS) + len(CONTEXTS) * max(ROWS))
        slots = {context: filled_slot(backend, context, generator) for context in CONTEXTS}
        cells = [(context, rows) for context in CONTEXTS for rows in ROWS]
        for context, rows in cells:
            pass_ms(backend, binary_tree(slots[context], rows, generator))
        if dtype == DTYPES[0]:
            records.begin()
        for key in keys:
            if records.wants(key):
                others = Others()
                read, products, took = bandwidth.bytes_per_s(), ceiling.products_per_s(), {}
                for cell in generator.permutation(len(cells)).tolist():
                    context, rows = cells[cell]
                    took[f"{context}/{rows}"] = pass_ms(backend, binary_tree(slots[context], rows, generator))
                records.add(key, {"bandwidth": read, "products": products, "ms": took, "others": others.share()})
            progress.advance(task)


def pass_ms(backend: Backend, block: RowBlock) -> float:
    started = time.perf_counter()
    backend.forward([block])
    took = 1e3 * (time.perf_counter() - started)
    backend.rollback(block.slot)
    return took


def figures(records: Records, checkpoint: Path) -> dict[str, float | int | str | bool]:
    """Medians over the quiet repeats, all where they are few; spreads are the quartiles' distance over the median."""
    out: dict[str, float | int | str | bool] = {}
    for dtype, short, itemsize in (("bfloat16", "bf16", 2), ("float32", "fp32", 4)):
        every = records.of(f"pass/{dtype}/")
        if not every:
            continue
        quiet = [unit for unit in every if unit["others"] <= QUIET]
        units = quiet if len(quiet) >= _ENOUGH else every
        out[f"pass_repeats_measured_{short}"] = len(every)
        out[f"pass_others_share_{short}"] = statistics.median(unit["others"] for unit in units)
        size = weight_bytes(checkpoint, itemsize)
        out[f"pass_repeats_{short}"] = len(units)
        out[f"weight_bytes_{short}"] = size
        out[f"read_gb_per_s_{short}"] = statistics.median(unit["bandwidth"] for unit in units) / 1e9
        out[f"bound_ms_{short}"] = statistics.median(1e3 * size / unit["bandwidth"] for unit in units)
        for context in CONTEXTS:
            for rows in ROWS:
                values = [unit["ms"][f"{context}/{rows}"] for unit in units]
                low, middle, high = np.percentile(values, [25, 50, 75]).tolist()
                out[f"pass_ms_{short}_{context}_{rows}"] = middle
                out[f"pass_spread_{short}_{context}_{rows}"] = (high - low) / middle
            out[f"rows16_over_rows1_{short}_{context}"] = _median_ratio(units, f"{context}/16", f"{context}/1")
        # A weight is one product a row, whatever it is stored as.
        out[f"gflop_per_s_{short}"] = statistics.median(2 * unit["products"] for unit in units) / 1e9
        out[f"rows16_over_rows1_floor_{short}"] = statistics.median(
            1e3 * 16 * size / itemsize / unit["products"] / unit["ms"]["256/1"] for unit in units
        )
        over = [unit["ms"]["256/16"] / (1e3 * size / unit["bandwidth"]) for unit in units]
        out[f"pass_over_bound_16_{short}"] = statistics.median(over)
        out[f"pass_over_bound_1_{short}"] = statistics.median(
            unit["ms"]["256/1"] / (1e3 * size / unit["bandwidth"]) for unit in units
        )
    if "pass_over_bound_16_bf16" in out:
        out["pass_over_bound_16"] = out["pass_over_bound_16_bf16"]
        out["rows16_over_rows1_floor"] = out["rows16_over_rows1_floor_bf16"]
        out["rows16_over_rows1"] = max(float(out[f"rows16_over_rows1_bf16_{context}"]) for context in CONTEXTS)
    return out


def _median_ratio(units: list[dict[str, dict[str, float]]], above: str, below: str) -> float:
    return statistics.median(unit["ms"][above] / unit["ms"][below] for unit in units)
