"""The decoder for CUDA devices: static shapes, captured passes, paged attention over paths."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Literal

import torch

from contracts.errors import InvalidArgument
from models.backend import BackendInfo, PassResult, RowBlock
from models.config import DecoderConfig
from models.cuda.forward import Forward, Outputs
from models.cuda.graphs import MAX_GRAPHS, CudaCapture, GraphCache
from models.cuda.inputs import Given, HostBuffer, PassInputs
from models.cuda.kernels import PassKernels, tile_lines
from models.cuda.layout import ROW_BUCKETS, Layout, layout_of
from models.cuda.results import Results
from models.cuda.rows import PassRows, pass_rows
from models.cuda.storage import DeviceStorage
from models.cuda.torch_kernels import TorchKernels
from models.kv import SlotPool
from models.passes import FINAL_NORM_TAP, plan, tap_layers
from models.pooled import PooledSlots
from models.weights import DecoderWeights


class CudaDecoder(PooledSlots):
    """Backend for one GPU, in bf16 or fp32; on a CPU it runs the same pass uncaptured, with the reference kernels.

    weights: on the device already. kernels: None chooses Triton on a GPU that has it, torch elsewhere. capture: whether
    passes of up to 256 rows are recorded and replayed; ignored on a CPU. results: where logits and hidden rows come back,
    "host" by pinned copies (the pass is over then) or "device". fixed_rows: strict mode, every pass runs as passes of
    exactly so many rows, padded or cut, so that all its matrix products have one shape; see models.cuda.invariance.

    Not bound to a stream: a caller that changes its stream between calls must order them.
    """

    def __init__(
        self,
        info: BackendInfo,
        config: DecoderConfig,
        weights: DecoderWeights,
        *,
        kv_budget_tokens: int,
        poison: bool = False,
        kernels: PassKernels | None = None,
        capture: bool = True,
        results: Literal["host", "device"] = "host",
        fixed_rows: int | None = None,
        max_graphs: int = MAX_GRAPHS,
    ) -> None:
        if fixed_rows is not None and fixed_rows not in ROW_BUCKETS:
            raise InvalidArgument(
                "fixed_rows", f"{fixed_rows} is no row bucket; known: {', '.join(map(str, ROW_BUCKETS))}"
            )
        self.info = info
        self._config = config
        self._fixed_rows = fixed_rows
        self._device = weights.embedding.device
        self._storage = DeviceStorage(config, kv_budget_tokens, weights.embedding)
        self._pool = SlotPool(kv_budget_tokens, self._storage, poison=poison)
        self._host = HostBuffer(self._device)
        self._results = Results(self._device, on_host=results == "host")
        self._tile = tile_lines(config.group) // config.group
        forward = Forward(config, weights, self._storage, kernels or _kernels(self._device))
        recorder = CudaCapture(forward, self._device) if capture and self._device.type == "cuda" else None
        self._graphs = GraphCache(self._inputs, forward, recorder, max_graphs)

    @property
    def captured(self) -> int:
        """Graphs held now."""
        return self._graphs.captured

    @torch.inference_mode()
    def forward(self, blocks: Sequence[RowBlock], *, taps: Sequence[str] = ()) -> PassResult:
        tapped = tap_layers(taps, self._config.num_layers)
        spans = plan(self._pool, self.info, blocks)
        if not spans:
            return PassResult([], {tap: [] for tap in taps})
        rows = pass_rows(spans)
        given = [(span.start, span.block.inputs) for span in spans if span.block.inputs is not None]
        layers = tuple(sorted(set(tapped.values())))
        step = self._fixed_rows or len(rows)
        self._results.begin(len(rows), len(rows.wanted), len(layers) + (FINAL_NORM_TAP in taps), self._config)
        with self._on_device():
            for start in range(0, len(rows), step):
                stop = min(len(rows), start + step)
                layout = self._layout(rows, start, stop, layers, FINAL_NORM_TAP in taps, bool(given))
                outputs = self._run(layout, rows, start, stop, given)
                self._results.take(outputs, stop - start, len(rows.wanted_within(start, stop)))
            logits, hidden = self._results.end(rows.order)
        for span in spans:
            self._pool.stage(span.slot, span.block)
        ends = list(itertools.accumulate((len(span.wanted) for span in spans), initial=0))
        place = {tap: layers.index(layer) for tap, layer in tapped.items()}
        place |= {FINAL_NORM_TAP: len(layers)} if FINAL_NORM_TAP in taps else {}
        split = {tap: [hidden[index][span.start : span.stop] for span in spans] for tap, index in place.items()}
        return PassResult([logits[first:last] for first, last in itertools.pairwise(ends)], split)

    def _run(self, layout: Layout, rows: PassRows, start: int, stop: int, given: Given) -> Outputs:
        def load(inputs: PassInputs) -> None:
            inputs.load(rows, start, stop, given, self._host, self._storage.scratch, self._tile)

        return self._graphs.run(layout, load)

    def _layout(
        self, rows: PassRows, start: int, stop: int, layers: tuple[int, ...], normed: bool, given: bool
    ) -> Layout:
        return layout_of(
            rows=stop - start,
            sessions=int(rows.table_of[stop - 1] - rows.table_of[start]) + 1,
            longest=int(rows.ends[start:stop].max()),
            deepest=rows.paths.shape[1],
            tiles=len(rows.tiles(start, stop, self._tile)[0]),
            wanted=len(rows.wanted_within(start, stop)),
            taps=layers,
            normed=normed,
            given=given,
            fixed_rows=self._fixed_rows,
        )

    def _inputs(self, layout: Layout) -> PassInputs:
        return PassInputs(layout, self._config.hidden_size, self._device)

    def _on_device(self) -> AbstractContextManager[object]:
        # Triton launches on the current device.
        return torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()


def _kernels(device: torch.device) -> PassKernels:
    if device.type == "cuda" and find_spec("triton") is not None:
        from models.cuda.triton_kernels import TritonKernels

        return TritonKernels()
    return TorchKernels()
