"""A draft head's decoder layer with a matrix that fuses its inputs before it and a vocabulary after it.

The same kernels as a target's pass (models/cpu/run.py), without what levels of a few rows would spend around them: buffers
are kept, and a round that grows a tree by value is one compiled call (models/cpu/draft_round.py).
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from contracts.errors import InvalidArgument, ResourceExhausted
from models.backend import Int64Array, KVSlot
from models.config import DecoderConfig
from models.cpu.buffers import ModelBuffers
from models.cpu.draft_block import RoundBlock, TargetRows
from models.cpu.draft_buffers import (
    NONE_FURTHER,
    Floats,
    FurtherTokens,
    GrownNodes,
    GrowthBuffers,
    LevelBuffers,
    address,
    fresh_counters,
    zeros,
)
from models.cpu.draft_level import run_level
from models.cpu.draft_packing import kind_of, packed
from models.cpu.draft_round import First, grow_at
from models.cpu.formats import INT8
from models.cpu.helpers import Helpers
from models.cpu.matmul import widened_floats
from models.cpu.storage import PagedStorage
from models.kv import Slot, SlotPool
from models.pooled import PooledSlots
from models.weights import DecoderWeights

_LINE_BYTES = 64


class DraftLayer(PooledSlots):
    """One layer with its KV slots. Not thread-safe. Row results do not depend on the rows beside them.

    config: of one layer. weights: its layer, final norm, and head [V, H], all of one dtype (bf16 or fp32). real, drafted:
    matrices [H, R] and [H, 2H] in that dtype; a row's input is one of them times what is fused: R floats for a row of the
    target's, the head's own feature and a token's embedding, both divided by their root mean squares, for a drafted one.
    embedded: float32 [V, H], the latter for the tokens of the vocabulary. table: the embeddings of the target's whole
    vocabulary as they are, float32 [T, H] or, uint16, the bits of bf16. quantised: matrices are packed as int8.
    Raises InvalidArgument for other shapes.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        real: Tensor,
        drafted: Tensor,
        embedded: Floats,
        table: npt.NDArray[Any],
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
        if table.ndim != 2 or table.shape[1] != hidden or table.dtype not in (np.float32, np.uint16):
            raise InvalidArgument("table", f"{table.dtype} of shape {table.shape}, expected {hidden} columns")
        self._config = config
        self._storage = PagedStorage(config, kv_budget_tokens)
        self._pool = SlotPool(kv_budget_tokens, self._storage, poison=poison)
        self._threads = threads or len(os.sched_getaffinity(0))
        self._helpers = Helpers(self._threads - 1, "draftproof-level")
        kind = INT8 if quantised else kind_of(weights.head.dtype)
        self._model = ModelBuffers(config, weights, kind, self._threads)
        self._real, self._drafted = _aligned(packed(real, kind)), _aligned(packed(drafted, kind))
        self._real_depth, self._embedded = real.shape[1], np.ascontiguousarray(embedded)
        self._table = np.ascontiguousarray(table)
        cos, sin = config.rope.table(config.context_length)
        self._cos, self._sin = np.ascontiguousarray(cos.numpy()), np.ascontiguousarray(sin.numpy())
        self._widest = max(self._real_depth, 2 * hidden)
        # The fusing matrices are deeper than the layer's.
        self._widened = zeros(self._threads, widened_floats(self._widest) if quantised else 0)
        self._record = self._model.record._replace(
            widened=address(self._widened), widened_stride=self._widened.shape[1]
        )
        self._buffers = LevelBuffers(self._record, self._threads, self._widest)
        self._round: RoundBlock | None = None
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
        counters = fresh_counters(self._threads)
        work = work._replace(counters=address(counters))
        matrix = self._drafted if drafted else self._real
        level = buffers.level._replace(
            matrix=address(matrix), depth=fused.shape[1], vocab=self._config.vocab_size, ranked=0
        )
        # Counters are a call's own: a helper that starts late must find its own call finished.
        record, threads = self._record, self._threads

        def help_out(number: int, _kept: object = counters) -> None:
            run_level(record, work, level, number, threads)

        self._helpers.hand_out(help_out, threads - 1)
        run_level(record, work, level, 0, threads)
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
        given: Floats | TargetRows,
        *,
        start: int = 0,
        width: int,
        depth: int,
        least: float,
        further: FurtherTokens = NONE_FURTHER,
    ) -> GrownNodes:
        """Runs rows after each other, keeps them, and grows a tree behind the last.

        given: what is fused, float32 [N, R], or what that is made from. `depth` levels of children, each time of the `width`
        most valuable nodes of the last level, `width` each; none of a node of a value (path log-probability) below `least`.
        start: as `run`. Nothing may be staged. Raises as `run`, and InvalidArgument for rows of other shapes and tokens that
        are none of the target's.
        """
        own = self._pool.own(slot)
        count, drafts = given.count if isinstance(given, TargetRows) else len(given), width * (depth - 1)
        if own.staged or width > self._config.vocab_size:
            raise InvalidArgument("slot" if own.staged else "width", f"{own.staged} rows are staged, width is {width}")
        context = own.length + count + drafts
        self._make_room(own, count + drafts, start + own.length + count + depth - 2)
        round = self._round_for(count, depth, width, least, context, further)
        if isinstance(given, TargetRows):
            taps, places = len(given.taps), given.places(self._real_depth, self._table)
        else:
            round.buffers.put_fused(given)
            taps, places = 0, []
        block = round.fresh(own, count, start, context, taps, places, further)
        place, threads = address(block), self._threads

        def help_out(number: int, _kept: object = block) -> None:
            grow_at(place, number, threads)

        self._helpers.hand_out(help_out, threads - 1)
        end = grow_at(place, 0, threads)
        self._pool.extend(own, count, dropped=end // width - 1)
        return round.kept.grown(end)

    def _make_room(self, slot: Slot, rows: int, position: int) -> None:
        left = slot.capacity - slot.length
        if rows > left:
            raise ResourceExhausted("rows", f"{rows} rows wanted, the slot has room for {left}")
        if position >= self._config.context_length:
            raise InvalidArgument("rows", f"position {position} is past the context of {self._config.context_length}")
        self._pool.make_writable(slot, rows - slot.staged)

    def _buffers_for(self, rows: int, wanted: int, ranked: int, context: int, further: int = 0) -> LevelBuffers:
        held = self._buffers
        more = rows > held.rows or wanted > held.wanted or ranked > held.ranked
        if more or context > held.context or further > held.further:
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

    def _round_for(
        self, first: int, depth: int, width: int, least: float, context: int, further: FurtherTokens
    ) -> RoundBlock:
        buffers = self._buffers_for(max(first, width), width, width, context, further.count)
        held = self._round
        if held is None or not held.fits(buffers, depth, width, least, first):
            held = self._round = self._laid_out(
                buffers, GrowthBuffers(depth, width, max(first, _LINE_BYTES // 4), least)
            )
        return held

    def _laid_out(self, buffers: LevelBuffers, kept: GrowthBuffers) -> RoundBlock:
        level = buffers.level._replace(
            matrix=address(self._real), depth=self._real_depth, vocab=self._config.vocab_size, ranked=kept.width
        )
        growth = kept.record._replace(
            drafted=address(self._drafted),
            embedded=address(self._embedded),
            cos=address(self._cos),
            sin=address(self._sin),
            group_rows=buffers.group_rows,
        )
        first = First(
            embedding=address(self._table),
            halves=int(self._table.dtype == np.uint16),
            arena=self._storage.address,
            page_bytes=self._storage.page_bytes,
            rows=0,
            table=0,
            pages=0,
            taps=0,
            given=0,
        )
        taps = self._real_depth // self._config.hidden_size
        return RoundBlock(self._record, buffers, level, kept, growth, first, taps=taps, threads=self._threads)

    def _compile(self) -> None:
        """So that compiling, or reading what is cached, belongs to loading."""
        slot = self.allocate(4)
        row = np.zeros((1, self._real_depth), np.float32)
        self.run(slot, row, np.array([-1]), wanted=1)
        self.rollback(slot)
        self.grow(slot, row, width=1, depth=2, least=-np.inf)
        self.release(slot)


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
