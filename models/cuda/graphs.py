"""Captured passes, one a layout, kept while they are used.

A layout's first pass runs eagerly, which compiles and sets up whatever it needs; the second is captured, and from then on
it is replayed. Captures share one private pool, so all graphs together take little more memory than the largest of them:
what one pass leaves in the pool, its outputs included, is overwritten by the next, whoever runs it.

A graph holds the addresses of the weights, the cache, the position tables and its inputs. None of them moves while the
decoder lives, so nothing invalidates a graph; the one that was not used for longest goes when there are too many.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from models.cuda.forward import Outputs
from models.cuda.inputs import PassInputs
from models.cuda.layout import ROW_BUCKETS, Layout

# vLLM and SGLang capture tens of sizes; ours are kept by what is used.
MAX_GRAPHS = 64


class Replayable(Protocol):
    """What is captured, ready to run again over the same addresses."""

    def replay(self) -> None: ...


# Captures a pass over these inputs: the graph, and where its outputs lie.
Capture = Callable[[PassInputs], tuple[Replayable, Outputs]]


@dataclass
class _Kept:
    inputs: PassInputs
    graph: Replayable | None = None
    outputs: Outputs | None = None


class GraphCache:
    """Passes by layout. make_inputs: static inputs of a layout. eager: the pass itself. capture: records it."""

    def __init__(
        self,
        make_inputs: Callable[[Layout], PassInputs],
        eager: Callable[[PassInputs], Outputs],
        capture: Capture | None,
        limit: int = MAX_GRAPHS,
    ) -> None:
        self._make_inputs = make_inputs
        self._eager = eager
        self._capture = capture
        self._limit = limit
        self._kept: OrderedDict[Layout, _Kept] = OrderedDict()

    @property
    def captured(self) -> int:
        """Graphs held."""
        return sum(kept.graph is not None for kept in self._kept.values())

    def run(self, layout: Layout, load: Callable[[PassInputs], None]) -> Outputs:
        """Outputs of the pass that `load` fills in; where it was replayed, they stand until the next call."""
        if self._capture is None or layout.rows > ROW_BUCKETS[-1]:
            inputs = self._make_inputs(layout)
            load(inputs)
            return self._eager(inputs)
        kept = self._kept.get(layout)
        first = kept is None
        if kept is None:
            while len(self._kept) >= self._limit:
                self._kept.popitem(last=False)
            kept = self._kept[layout] = _Kept(self._make_inputs(layout))
        self._kept.move_to_end(layout)
        load(kept.inputs)
        if first:
            return self._eager(kept.inputs)
        if kept.graph is None or kept.outputs is None:
            # Capturing records without computing: the inputs just loaded are those of the replay below.
            kept.graph, kept.outputs = self._capture(kept.inputs)
        kept.graph.replay()
        return kept.outputs


class CudaCapture:
    """Records passes by torch's graphs, all of them into one pool and from one stream."""

    def __init__(self, run: Callable[[PassInputs], Outputs], device: torch.device) -> None:
        self._run = run
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, inputs: PassInputs) -> tuple[Replayable, Outputs]:
        current = torch.cuda.current_stream(self._device)
        # Libraries keep handles and workspaces by stream: made here, not while recording.
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            self._run(inputs)
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads of the process may use the device meanwhile: their calls are no fault of the capture.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            outputs = self._run(inputs)
        return graph, outputs
