"""A draft head's decoder layer with a matrix that fuses its inputs before it and a vocabulary after it.

The same kernels as a target's pass (models/cpu/run.py), without what levels of a few rows would spend around them: buffers
are kept, and a tree by value is one compiled call (models/cpu/draft_growth.py).
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from contracts.errors import InvalidArgument, ResourceExhausted
from models.backend import Int64Array, KVSlot
from models.config import DecoderConfig
from models.cpu.buffers import ModelBuffers
from models.cpu.draft_buffers import (
    Floats,
    GrowthBuffers,
    LevelBuffers,
    address,
    fresh_counters,
    fresh_levels,
    zeros,
)
from models.cpu.draft_growth import grow
from models.cpu.draft_level import run_level
from models.cpu.draft_packing import kind_of, packed
from models.cpu.formats import INT8, PANEL
from models.cpu.matmul import widened_floats
from models.cpu.packing import panels
from models.cpu.storage import PagedStorage
from models.kv import Slot, SlotPool
from models.pooled import PooledSlots
from models.weights import DecoderWeights

_LINE_BYTES = 64


@dataclass(frozen=True)
class GrownNodes:
    """A grown tree, in the order of growth: indices in the draft vocabulary (V + i: further token i), parents (-1: the last
    row given) and depths int64 [N], path log-probabilities float32 [N]."""

    tokens: Int64Array
    parents: Int64Array
    depths: Int64Array
    values: Floats


@dataclass(frozen=True)
class FurtherTokens:
    """Tokens of one session beside the draft vocabulary: their rows of the head, packed, and their embeddings [F, H]."""

    count: int
    matrix: npt.NDArray[np.uint8]
    embedded: Floats


NONE_FURTHER = FurtherTokens(0, np.zeros(0, np.uint8), np.zeros((0, 0), np.float32))


class DraftLayer(PooledSlots):
    """One layer with its KV slots. Not thread-safe. Row results do not depend on the rows beside them.

    config: of one layer. weights: its layer, final norm, and head [V, H], all of one dtype (bf16 or fp32). real, drafted:
    matrices [H, R] and [H, 2H] in that dtype; a row's input is one of them times what is fused: R floats for a row of the
    target's, the head's own feature and a token's embedding, both divided by their root mean squares, for a drafted one.
    embedded: float32 [V, H], the latter for the tokens of the vocabulary. quantised: matrices are packed as int8.
    Raises InvalidArgument for other shapes.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        real: Tensor,
        drafted: Tensor,
        embedded: Floats,
        *,
        kv_budget_tokens: int,
        quantised: bool = False,
        threads: int | None = None,
        poison: bool = False,
    ) -> None:
        hidden = config.hidden_size
        if len(real) != hidden or drafted.shape != (hidden, 2 * hidden):
            raise InvalidArgument("fusing", f"{tuple(real.shape)} and {tuple(drafted.shape)} for a width of {hidden}")
        if embedded.shape != (config.vocab_size, hidden):
            raise InvalidArgument("embedded", f"{embedded.shape}, expected ({config.vocab_size}, {hidden})")
        self._config = config
        self._storage = PagedStorage(config, kv_budget_tokens)
        self._pool = SlotPool(kv_budget_tokens, self._storage, poison=poison)
        self._threads = threads or len(os.sched_getaffinity(0))
        self._helpers = ThreadPoolExecutor(max(1, self._threads - 1), thread_name_prefix="draftproof-level")
        kind = INT8 if quantised else kind_of(weights.head.dtype)
        self._model = ModelBuffers(config, weights, kind, self._threads)
        self._real, self._drafted = _aligned(packed(real, kind)), _aligned(packed(drafted, kind))
        self._real_depth, self._embedded = real.shape[1], np.ascontiguousarray(embedded)
        cos, sin = config.rope.table(config.context_length)
        self._cos, self._sin = np.ascontiguousarray(cos.numpy()), np.ascontiguousarray(sin.numpy())
        self._widest = max(self._real_depth, 2 * hidden)
        # The fusing matrices are deeper than the layer's.
        self._widened = zeros(self._threads, widened_floats(self._widest) if quantised else 0)
        self._record = self._model.record._replace(
            widened=address(self._widened), widened_stride=self._widened.shape[1]
        )
        self._buffers = LevelBuffers(self._record, self._threads, self._widest)
        self._growth = GrowthBuffers(2, 1, 1)
        self._compile()

    def commit_all(self, slot: KVSlot) -> None:
        """Keeps all staged rows, which must be one path."""
        own = self._pool.own(slot)
        self._pool.commit(own, range(own.staged))

    def run(
        self,
        slot: KVSlot,
        fused: Floats,
        parents: Int64Array,
        *,
        start: int = 0,
        drafted: bool = False,
        wanted: int = 0,
    ) -> tuple[Floats, Floats]:
        """Runs rows over the slot's kept rows and stages them: logits float32 [wanted, V], features float32 [N, H]; no
        features where no row is wanted.

        start: position of the slot's first row. fused: float32 [N, R], or [N, 2H] of `drafted` rows. parents: int64 [N],
        earlier staged rows, counted since the slot's last commit; -1 for the kept ones alone. wanted: so many of the last
        rows are read by the head. Features are the final norm's output. Raises ResourceExhausted where the slot has no room,
        InvalidArgument for parents that are none and past the context.
        """
        own = self._pool.own(slot)
        count, before = len(fused), own.staged
        if len(parents) != count or (parents >= before + np.arange(count)).any() or parents.min() < -1:
            raise InvalidArgument("parents", "a parent must be -1 or an earlier staged row")
        staged = np.concatenate([own.parents, parents])
        paths = _paths(staged, before)
        positions = start + own.length - 1 + np.array([len(path) for path in paths])
        self._make_room(own, before + count, int(positions.max()))
        buffers = self._buffers_for(count, wanted, 0, own.length + before + count)
        work = buffers.filled(own, self._storage, fused, paths, wanted, self._cos[positions], self._sin[positions])
        counters = fresh_counters(1, self._threads)
        work = work._replace(counters=address(counters))
        matrix = self._drafted if drafted else self._real
        level = buffers.level._replace(
            matrix=address(matrix), depth=fused.shape[1], vocab=self._config.vocab_size, ranked=0
        )
        # Counters are a call's own: a helper that starts late must find its own call finished.
        for thread in range(1, self._threads):
            self._helpers.submit(_run_level, counters, self._record, work, level, thread, self._threads)
        run_level(self._record, work, level, 0, self._threads)
        own.parents = staged
        logits = buffers.logits[:wanted, : self._config.vocab_size].copy()
        return logits, buffers.normed[: count if wanted else 0, : self._config.hidden_size].copy()

    def further(self, rows: npt.NDArray[np.uint8], embedded: Floats) -> FurtherTokens:
        """Tokens to rank beside the vocabulary's: panels of their rows of the head (FurtherRows, in the layer's type), and
        what `embedded` is of the vocabulary, float32 [F, H]."""
        return FurtherTokens(len(embedded), _aligned(rows), np.ascontiguousarray(embedded))

    def grow(
        self,
        slot: KVSlot,
        fused: Floats,
        *,
        start: int = 0,
        width: int,
        depth: int,
        least: float,
        further: FurtherTokens = NONE_FURTHER,
    ) -> GrownNodes:
        """Runs rows float32 [N, R] after each other, keeps them, and grows a tree behind the last.

        `depth` levels of children, each time of the `width` most valuable nodes of the last level, `width` each; none of a
        node of a value (path log-probability) below `least`. start: as `run`. Nothing may be staged. Raises as `run`.
        """
        own = self._pool.own(slot)
        count, drafts = len(fused), width * (depth - 1)
        if own.staged or width > self._config.vocab_size:
            raise InvalidArgument("slot" if own.staged else "width", f"{own.staged} rows are staged, width is {width}")
        self._make_room(own, count + drafts, start + own.length + count + depth - 2)
        rows = np.arange(count)
        paths = _paths(rows - 1, 0)
        buffers = self._buffers_for(max(count, width), width, width, own.length + count + drafts, further.count)
        positions = start + own.length + rows
        work = buffers.filled(own, self._storage, fused, paths, 1, self._cos[positions], self._sin[positions])
        kept = self._growth_for(depth, width, count)
        counters, levels = fresh_counters(depth, self._threads), fresh_levels(work, depth)
        growth = kept.record(work, paths, least, own.length, start)._replace(
            levels=address(levels),
            counters=address(counters),
            drafted=address(self._drafted),
            embedded=address(self._embedded),
            further_embedded=address(further.embedded),
            cos=address(self._cos),
            sin=address(self._sin),
            group_rows=buffers.group_rows,
        )
        level = buffers.level._replace(
            matrix=address(self._real),
            depth=fused.shape[1],
            vocab=self._config.vocab_size,
            ranked=width,
            further=further.count,
            further_matrix=address(further.matrix),
            further_stride=panels(further.count) * PANEL,
        )
        fresh = (counters, levels)
        for thread in range(1, self._threads):
            self._helpers.submit(_grow, fresh, self._record, work, level, growth, thread, self._threads)
        grow(self._record, work, level, growth, 0, self._threads)
        drafted = int(levels[1:, 0].sum())
        own.parents = np.concatenate([rows - 1, np.full(drafted, count - 1)])
        self._pool.commit(own, range(count))
        end = width * (1 + drafted)
        return GrownNodes(
            kept.tokens[:end].copy(), kept.parents[:end].copy(), kept.depths[:end].copy(), kept.values[:end].copy()
        )

    def _make_room(self, slot: Slot, rows: int, position: int) -> None:
        left = slot.capacity - slot.length
        if rows > left:
            raise ResourceExhausted("rows", f"{rows} rows wanted, the slot has room for {left}")
        if position >= self._config.context_length:
            raise InvalidArgument("rows", f"position {position} is past the context of {self._config.context_length}")
        self._pool.make_writable(slot, rows - slot.staged)

    def _buffers_for(self, rows: int, wanted: int, ranked: int, context: int, further: int = 0) -> LevelBuffers:
        held = self._buffers
        room = (held.rows, held.wanted, held.ranked, held.context, held.further)
        if any(need > there for need, there in zip((rows, wanted, ranked, context, further), room, strict=True)):
            self._buffers = LevelBuffers(
                self._record,
                self._threads,
                self._widest,
                rows=max(rows, held.rows),
                wanted=max(wanted, held.wanted),
                ranked=max(ranked, held.ranked),
                context=max(held.context, context + context // 2),
                further=max(held.further, 2 * further),
            )
        return self._buffers

    def _growth_for(self, depth: int, width: int, first: int) -> GrowthBuffers:
        held = self._growth
        if (held.depth, held.width) != (depth, width) or first > held.first:
            self._growth = GrowthBuffers(depth, width, max(first, _LINE_BYTES // 4))
        return self._growth

    def _compile(self) -> None:
        """So that compiling, or reading what is cached, belongs to loading."""
        slot = self.allocate(4)
        row = np.zeros((1, self._real_depth), np.float32)
        self.run(slot, row, np.array([-1]), wanted=1)
        self.rollback(slot)
        self.grow(slot, row, width=1, depth=2, least=-np.inf)
        self.release(slot)


def _run_level(_fresh: object, *arguments: Any) -> None:
    run_level(*arguments)


def _grow(_fresh: object, *arguments: Any) -> None:
    grow(*arguments)


def _paths(parents: Int64Array, before: int) -> list[list[int]]:
    """Of each staged row from `before` on: its staged ancestors and itself, root first."""
    known: list[list[int]] = []
    for row, parent in enumerate(parents.tolist()):
        known.append([*known[parent], row] if parent >= 0 else [row])
    return known[before:]


def _aligned(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The same bytes, beginning at a cache line."""
    raw = np.empty(data.size + _LINE_BYTES, np.uint8)
    whole = raw[-address(raw) % _LINE_BYTES :][: data.size]
    whole[:] = data
    return whole
