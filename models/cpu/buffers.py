"""Filling the records of a pass: arrays allocated, kept alive and turned into addresses."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from models.config import DecoderConfig
from models.cpu.formats import BF16, FP32, PANEL
from models.cpu.matmul import widened_floats
from models.cpu.packing import panels
from models.cpu.records import Model, Work
from models.cpu.run import PHASES_AT_END, PHASES_PER_LAYER
from models.cpu.storage import PagedStorage
from models.cpu.sync import COUNTER_STRIDE
from models.cpu.tile import MAX_SCRATCH_PANELS, MAX_TILE_ROWS, tile_entry
from models.cpu.weights import PassWeights, pass_weights
from models.passes import Span
from models.weights import DecoderWeights

Floats = npt.NDArray[np.float32]

# Query rows that share a sweep over the keys: two full tiles keep a group's scores within the first-level cache.
_QUERIES_PER_GROUP = 2 * MAX_TILE_ROWS
_UNITS_PER_THREAD = 2
_LINE_FLOATS = 16


class ModelBuffers:
    """The constant record and the arrays behind it. kind: the format of the layers' panels. threads: of a pass."""

    def __init__(self, config: DecoderConfig, weights: DecoderWeights | PassWeights, kind: int, threads: int) -> None:
        own = weights if isinstance(weights, PassWeights) else pass_weights(weights, config, kind)
        packed = own.packed
        keep = _Keep()
        qkv = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        depths = (config.hidden_size, config.num_heads * config.head_dim, config.intermediate_size)
        widened = 0 if kind in (FP32, BF16) else max(map(widened_floats, depths))
        self.record = Model(
            tile=tile_entry(kind),
            arena=keep(packed.arena),
            offsets=keep(packed.offsets),
            head=packed.head,
            kind=kind,
            head_kind=packed.head_kind,
            widened=keep.floats(threads * widened)[0],
            widened_stride=widened,
            norms=keep(own.norms),
            qkv_bias=keep(own.qkv_bias),
            out_bias=keep(own.out_bias),
            head_norms=keep(own.head_norms),
            windows=keep(np.array([window or 0 for window in config.windows], np.int64)),
            layers=config.num_layers,
            hidden=config.hidden_size,
            hidden_stride=_stride(config.hidden_size),
            inner=config.intermediate_size,
            inner_stride=_stride(config.intermediate_size),
            qkv=qkv,
            qkv_stride=_stride(qkv),
            mixed_stride=_stride(config.num_heads * config.head_dim),
            vocab_stride=_stride(config.vocab_size),
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            head_stride=_stride(config.head_dim),
            eps=np.float32(config.rms_eps),
            scale=np.float32(config.head_dim**-0.5),
        )
        self.arrays = keep.arrays


class WorkBuffers:
    """One pass's record and the arrays behind it.

    x: float32 [rows, padded hidden], the rows' embeddings. outputs: whether anything behind the last layer is read.
    """

    def __init__(
        self,
        model: Model,
        spans: Sequence[Span],
        storage: PagedStorage,
        x: Floats,
        cos: Floats,
        sin: Floats,
        tap_layers: Sequence[int],
        threads: int,
        *,
        outputs: bool,
    ) -> None:
        rows, hidden = x.shape
        group = model.heads // model.kv_heads
        # Lists, not arrays: a pass of a few rows would spend a millisecond on numpy's fixed cost a call.
        stored = [span.slot.length + len(span.parents) for span in spans]
        score_stride = _stride(max(stored) + 1)
        paths = _paths(spans)
        wanted = [span.start + row for span in spans for row in span.wanted.tolist()]
        groups = _groups(model, spans, paths, threads)
        lines = max(last - first for first, last, _ in groups) * group
        tables = [span.slot.table.tolist() for span in spans]
        self.normed = np.zeros_like(x)
        self.taps = np.empty((len(tap_layers), rows, hidden), np.float32)
        self.logits = np.empty((len(wanted), model.vocab_stride), np.float32)
        phases = PHASES_PER_LAYER * model.layers + PHASES_AT_END
        keep = _Keep()
        pages, *ints = keep.joined(
            [storage.address + storage.page_bytes * page for table in tables for page in table],
            [index for index, span in enumerate(spans) for _ in range(span.start, span.stop)],
            [row for span, end in zip(spans, stored, strict=True) for row in range(end - span.stop + span.start, end)],
            [span.slot.length for span in spans],
            stored,
            list(itertools.accumulate(map(len, tables[:-1]), initial=0)),
            list(itertools.accumulate(map(len, paths), initial=0)),
            list(itertools.chain.from_iterable(paths)),
            list(itertools.chain.from_iterable(groups)),
            tap_layers,
            wanted,
        )
        keep.arrays.append(storage.arena)
        row_block, row_index, lengths, stored_rows, page_start, path_start, path, group_rows, layers, picks = ints
        qkv, query, mixed, inner, scores, out, gates, picked = keep.floats(
            rows * model.qkv_stride,
            rows * model.heads * model.head_stride,
            rows * model.mixed_stride,
            rows * model.inner_stride,
            threads * lines * score_stride,
            threads * lines * model.head_stride,
            threads * MAX_TILE_ROWS * MAX_SCRATCH_PANELS * PANEL,
            len(wanted) * hidden,
        )
        self.record = Work(
            rows=rows,
            x=keep(x),
            normed=keep(self.normed),
            qkv=qkv,
            query=query,
            mixed=mixed,
            inner=inner,
            cos=keep(cos),
            sin=keep(sin),
            row_block=row_block,
            row_index=row_index,
            lengths=lengths,
            stored=stored_rows,
            pages=pages,
            page_start=page_start,
            path_start=path_start,
            paths=path,
            groups=group_rows,
            group_count=len(groups),
            scores=scores,
            score_stride=score_stride,
            lines=lines,
            out=out,
            gates=gates,
            tap_count=len(tap_layers),
            tap_layers=layers,
            taps=keep(self.taps),
            kv_only=int(not outputs and not len(wanted) and model.layers - 1 not in tap_layers),
            wanted_count=len(wanted),
            wanted=picks,
            picked=picked,
            logits=keep(self.logits),
            counters=keep(np.zeros((1 + threads, phases, COUNTER_STRIDE), np.int64)),
            phases=phases,
        )
        self.arrays = keep.arrays


class _Keep:
    """Addresses of arrays, which it keeps alive; an absent or empty one has address 0."""

    def __init__(self) -> None:
        self.arrays: list[npt.NDArray[Any]] = []

    def __call__(self, array: npt.NDArray[Any] | None) -> int:
        if array is None or not array.size:
            return 0
        assert array.flags.c_contiguous
        self.arrays.append(array)
        # Not `array.ctypes`, which builds an object each time: a tenth of a small pass's preparation.
        return int(array.__array_interface__["data"][0])

    def joined(self, *parts: Sequence[int]) -> list[int]:
        """Addresses of int64 vectors, copied into one array."""
        start = self(np.array(list(itertools.chain.from_iterable(parts)), np.int64))
        return list(itertools.accumulate((8 * len(part) for part in parts[:-1]), initial=start))

    def floats(self, *counts: int) -> list[int]:
        """Addresses of float32 buffers of that many floats, uninitialised, each at a cache line's start of one array."""
        sizes = [4 * (-(-count // _LINE_FLOATS) * _LINE_FLOATS) for count in counts]
        raw = _floats(sum(sizes) // 4 + _LINE_FLOATS)
        start = self(raw)
        return list(itertools.accumulate(sizes[:-1], initial=start + -start % (4 * _LINE_FLOATS)))


def _stride(width: int) -> int:
    return panels(width) * PANEL


def _floats(*shape: int) -> Floats:
    return np.empty(shape, np.float32)


def _groups(
    model: Model, spans: Sequence[Span], paths: Sequence[Sequence[int]], threads: int
) -> list[tuple[int, int, int]]:
    """First and last + 1 row of each group, and how many entries the paths of its rows begin with in common.

    Spans are cut evenly: as finely as their scores' size asks, and into two units of work a thread where rows allow.
    """
    most = max(1, _QUERIES_PER_GROUP * model.kv_heads // model.heads)
    least = -(-_UNITS_PER_THREAD * threads // (model.kv_heads * len(spans)))
    groups = []
    for span in spans:
        rows = span.stop - span.start
        count = max(-(-rows // most), min(rows, least))
        cuts = [span.start + rows * cut // count for cut in range(count + 1)]
        for first, last in itertools.pairwise(cuts):
            own = paths[first]
            shared = len(own)
            for row in range(first + 1, last):
                while paths[row][:shared] != own[:shared]:
                    shared -= 1
            groups.append((first, last, shared))
    return groups


def _paths(spans: Sequence[Span]) -> list[list[int]]:
    """Of each row of the pass: its staged ancestors and itself, root first."""
    paths: list[list[int]] = []
    for span in spans:
        known: list[list[int]] = []
        for row, parent in enumerate(span.parents.tolist()):
            known.append([*known[parent], row] if parent >= 0 else [row])
        paths += known[span.staged_before :]
    return paths
