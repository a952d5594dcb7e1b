"""The arrays that passes read and compute in: allocated, kept alive and turned into addresses."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.config import DecoderConfig
from models.cpu.embedding import EmbeddingTable
from models.cpu.formats import BF16, FP32, PANEL
from models.cpu.matmul import widened_floats
from models.cpu.packing import panels
from models.cpu.preparing import QUERIES_PER_GROUP, WORK_FIELDS, prepare
from models.cpu.records import Model
from models.cpu.run import PHASES_AT_END, PHASES_PER_LAYER
from models.cpu.storage import PagedStorage
from models.cpu.stored import in_memory
from models.cpu.sync import COUNTER_STRIDE
from models.cpu.tile import MAX_SCRATCH_PANELS, MAX_TILE_ROWS, tile_entry
from models.cpu.weights import PassWeights, pass_weights
from models.passes import Span
from models.weights import DecoderWeights

Floats = npt.NDArray[np.float32]

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
        self.place = keep(in_memory(self.record))
        self.arrays = keep.arrays


class Prepared(NamedTuple):
    """A pass that is ready to run. place: of its record, which `memory` holds. logits: float32 [wanted, padded vocabulary].
    taps: float32 [taps, rows, padded hidden], the final norm's rows last where they are read.
    """

    place: int
    memory: npt.NDArray[np.int64]
    logits: Floats
    taps: Floats


class WorkBuffers:
    """Where passes compute, kept from one to the next: new memory would cost a fault a page.

    A pass's record and the counters that its threads share are new each time. A helper that comes late, when the next pass
    is under way, sees by them that its own is over, and touches nothing else.
    """

    def __init__(
        self,
        model: ModelBuffers,
        storage: PagedStorage,
        cos: Floats,
        sin: Floats,
        embedding: EmbeddingTable,
        threads: int,
    ) -> None:
        self._model, self._record = model, model.record
        self._embedding = embedding
        self._threads = threads
        phases = PHASES_PER_LAYER * self._record.layers + PHASES_AT_END
        self._counters = (1 + threads) * phases * COUNTER_STRIDE
        self._keep = _Keep()
        self._constant = [
            self._keep(cos),
            self._keep(sin),
            embedding.address,
            embedding.value_bytes,
            storage.address,
            storage.page_bytes,
            threads,
            phases,
        ]
        self._storage = storage
        self._rows = self._wanted = self._lines = self._score_stride = 0
        self._computed_in: list[int] = []

    def prepare(self, spans: Sequence[Span], tap_layers: Sequence[int], *, outputs: bool) -> Prepared:
        """outputs: whether the final norm's rows are read."""
        record, held = self._record, []
        blocks: list[int] = []
        rows, wanted = spans[-1].stop, 0
        most_stored = most_rows = paths = 0
        for span in spans:
            count, length, asked = span.stop - span.start, span.slot.length, len(span.wanted_list)
            inputs = self._inputs(span)
            held.append(inputs)
            staged = len(span.parent_list)
            blocks += (
                count,
                length,
                staged - count,
                len(span.slot.table),
                asked,
                0 if inputs is None else address(inputs),
            )
            wanted += asked
            most_stored, most_rows = max(most_stored, length + staged), max(most_rows, count)
            # Of each row its staged ancestors and itself.
            paths += sum(span.position_list) - count * (length - 1)
        lists = list(blocks)
        for span in spans:
            lists += span.token_list
        for span in spans:
            lists += span.position_list
        for span in spans:
            lists += span.parent_list
        for span in spans:
            lists += span.wanted_list
        lists += tap_layers
        for span in spans:
            lists += span.slot.table.tolist()
        score_stride = _stride(most_stored + 1)
        self._make_room(rows, wanted, most_rows, score_stride)
        kv_only = int(not outputs and not wanted and record.layers - 1 not in tap_layers)
        given = [
            *self._computed_in,
            *self._constant,
            len(spans),
            rows,
            wanted,
            len(tap_layers),
            kv_only,
            int(outputs),
            score_stride,
            len(lists),
            *lists,
        ]
        # Behind the lists the tables, whose sizes are those of models.cpu.preparing.
        tables = 6 * rows + 3 * len(spans) + 1 + paths
        start = self._counters
        memory = np.zeros(start + WORK_FIELDS + len(given) + tables, np.int64)
        memory[start + WORK_FIELDS : start + WORK_FIELDS + len(given)] = given
        logits = _floats(wanted, record.vocab_stride)
        taps = _floats(len(tap_layers) + outputs, rows, record.hidden_stride)
        return Prepared(prepare(self._model.place, memory, start, logits, taps), memory, logits, taps)

    def _inputs(self, span: Span) -> Floats | None:
        """What the block's rows are in place of embeddings that compiled code finds: float32 [rows, hidden]."""
        if span.block.inputs is not None:
            return np.ascontiguousarray(span.block.inputs.numpy(), np.float32)
        return None if self._embedding.value_bytes else self._embedding.rows(span.block.token_ids)

    def _make_room(self, rows: int, wanted: int, most_rows: int, score_stride: int) -> None:
        """For a pass of so many rows, the largest block of `most_rows`, whose scores are of that stride."""
        record, threads = self._record, self._threads
        group = record.heads // record.kv_heads
        lines = group * min(most_rows, max(1, QUERIES_PER_GROUP // group))
        if (
            rows <= self._rows
            and wanted <= self._wanted
            and lines <= self._lines
            and score_stride <= self._score_stride
        ):
            return
        self._rows, self._wanted = _grown(rows, self._rows), _grown(wanted, self._wanted)
        self._lines, self._score_stride = max(lines, self._lines), _grown(score_stride, self._score_stride)
        rows, half = self._rows, record.head_dim // 2
        keep = _Keep()
        self._computed_in = keep.floats(
            rows * record.hidden_stride,
            rows * record.hidden_stride,
            rows * record.qkv_stride,
            rows * record.heads * record.head_stride,
            rows * record.mixed_stride,
            rows * record.inner_stride,
            rows * half,
            rows * half,
            threads * self._lines * self._score_stride,
            threads * self._lines * record.head_stride,
            threads * MAX_TILE_ROWS * MAX_SCRATCH_PANELS * PANEL,
            self._wanted * record.hidden_stride,
        )
        self._computing = keep.arrays


class _Keep:
    """Addresses of arrays, which it keeps alive; an absent or empty one has address 0."""

    def __init__(self) -> None:
        self.arrays: list[npt.NDArray[Any]] = []

    def __call__(self, array: npt.NDArray[Any] | None) -> int:
        if array is None or not array.size:
            return 0
        assert array.flags.c_contiguous
        self.arrays.append(array)
        return address(array)

    def floats(self, *counts: int) -> list[int]:
        """Addresses of float32 buffers of that many floats, uninitialised, each at a cache line's start of one array."""
        sizes = [4 * (-(-count // _LINE_FLOATS) * _LINE_FLOATS) for count in counts]
        raw = _floats(sum(sizes) // 4 + _LINE_FLOATS)
        start = self(raw)
        return list(itertools.accumulate(sizes[:-1], initial=start + -start % (4 * _LINE_FLOATS)))


def address(array: npt.NDArray[Any]) -> int:
    """Where the array's first number lies."""
    return int(array.__array_interface__["data"][0])


def _stride(width: int) -> int:
    return panels(width) * PANEL


def _floats(*shape: int) -> Floats:
    return np.empty(shape, np.float32)


def _grown(wanted: int, had: int) -> int:
    """Room for `wanted`, and where there was less, for more to come."""
    return had if wanted <= had else max(PANEL, 1 << (wanted - 1).bit_length())
