"""The arrays that a draft layer's levels are computed in, kept from call to call, and the records that point at them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.backend import Int64Array
from models.cpu.draft_growth import LEVEL_PHASES, Growth
from models.cpu.draft_level import Level
from models.cpu.formats import PANEL
from models.cpu.packing import panels
from models.cpu.records import Model, Work
from models.cpu.storage import PAGE_ROWS, PagedStorage
from models.cpu.sync import COUNTER_STRIDE
from models.cpu.tile import MAX_SCRATCH_PANELS, MAX_TILE_ROWS
from models.kv import Slot, page_count

Floats = npt.NDArray[np.float32]

# Query rows that share a sweep over the keys, as in a target's pass.
_QUERIES_PER_GROUP = 2 * MAX_TILE_ROWS


class LevelBuffers:
    """Arrays of levels of up to `rows` rows, `wanted` of which the head reads and ranks `ranked` tokens of, with `context`
    rows of keys, the level's own included. fused: floats of the widest fused row. further: tokens beside the vocabulary.
    """

    def __init__(
        self,
        model: Model,
        threads: int,
        fused: int,
        *,
        rows: int = PANEL,
        wanted: int = PANEL,
        ranked: int = PANEL,
        context: int = 512,
        further: int = 0,
    ) -> None:
        self.rows, self.wanted, self.ranked, self.context, self.further = rows, wanted, ranked, context, further
        group = model.heads // model.kv_heads
        self.group_rows = max(1, _QUERIES_PER_GROUP // group)
        lines, stride = self.group_rows * group, panels(context + 1) * PANEL
        hidden, half = model.hidden_stride, model.head_dim // 2
        self.normed, self.logits = zeros(rows, hidden), zeros(wanted, model.vocab_stride)
        self._fused, self._cos, self._sin = zeros(rows, fused), zeros(rows, half), zeros(rows, half)
        self._row_index, self._picked_rows = np.zeros(rows, np.int64), np.zeros(wanted, np.int64)
        self._path_start, self._groups = np.zeros(rows + 1, np.int64), np.zeros((rows, 3), np.int64)
        # Committed length, and the end of what is staged.
        self._slot = np.zeros(2, np.int64)
        self._paths = self._pages = np.zeros(0, np.int64)
        self._round_pages = np.zeros(page_count(context, PAGE_ROWS), np.int64)
        # Written and read inside compiled code only.
        self._inside: list[npt.NDArray[Any]] = [
            zeros(rows, hidden),
            zeros(rows, model.qkv_stride),
            zeros(rows, model.heads, model.head_stride),
            zeros(rows, model.mixed_stride),
            zeros(rows, model.inner_stride),
            zeros(threads, lines, stride),
            zeros(threads, lines, model.head_stride),
            zeros(threads, MAX_TILE_ROWS, MAX_SCRATCH_PANELS * PANEL),
            zeros(wanted, hidden),
            zeros(threads, max(model.vocab_stride, panels(further) * PANEL)),
            zeros(wanted, ranked),
            np.zeros((wanted, ranked), np.int64),
            np.zeros(rows, np.int64),
            zeros(wanted, panels(further) * PANEL),
        ]
        x, qkv, query, mixed, inner, scores, out, gates, picked, scratch, values, tokens, none, beside = map(
            address, self._inside
        )
        slot = address(self._slot)
        self.work = Work(
            rows=0,
            x=x,
            normed=address(self.normed),
            qkv=qkv,
            query=query,
            mixed=mixed,
            inner=inner,
            cos=address(self._cos),
            sin=address(self._sin),
            row_block=none,
            row_index=address(self._row_index),
            lengths=slot,
            stored=slot + 8,
            pages=address(self._round_pages),
            page_start=none,
            path_start=address(self._path_start),
            paths=0,
            groups=address(self._groups),
            group_count=0,
            scores=scores,
            score_stride=stride,
            lines=lines,
            out=out,
            gates=gates,
            tap_count=0,
            tap_layers=0,
            taps=0,
            kv_only=0,
            wanted_count=0,
            wanted=address(self._picked_rows),
            picked=picked,
            logits=address(self.logits),
            counters=0,
            phases=LEVEL_PHASES,
        )
        self.level = Level(
            fused=address(self._fused),
            fused_stride=fused,
            depth=0,
            matrix=0,
            vocab=0,
            ranked=0,
            tokens=tokens,
            log_probs=values,
            scratch=scratch,
            scratch_stride=max(model.vocab_stride, panels(further) * PANEL),
            further_logits=beside,
            further=0,
            further_matrix=0,
            further_stride=0,
        )

    def put_fused(self, fused: Floats) -> None:
        """What is fused into each row, [N, R]."""
        self._fused[: len(fused), : fused.shape[1]] = fused

    def filled(
        self,
        slot: Slot,
        storage: PagedStorage,
        fused: Floats,
        paths: Sequence[Sequence[int]],
        wanted: int,
        cos: Floats,
        sin: Floats,
    ) -> Work:
        """The record of a pass over rows [N] behind the slot's staged ones, its arrays filled in; without counters."""
        count = len(fused)
        end = slot.length + slot.staged + count
        self.put_fused(fused)
        self._cos[:count], self._sin[:count] = cos, sin
        self._row_index[:count] = np.arange(end - count, end)
        self._picked_rows[:wanted] = np.arange(count - wanted, count)
        self._slot[:] = slot.length, end
        self._pages = address(storage.arena) + storage.page_bytes * slot.table
        self._paths = np.array([row for path in paths for row in path], np.int64)
        np.cumsum([len(path) for path in paths], out=self._path_start[1 : count + 1])
        groups = -(-count // self.group_rows)
        cuts = count * np.arange(groups + 1) // groups
        self._groups[:groups, 0], self._groups[:groups, 1], self._groups[:groups, 2] = cuts[:-1], cuts[1:], 0
        return self.work._replace(
            rows=count, paths=address(self._paths), pages=address(self._pages), group_count=groups, wanted_count=wanted
        )


class GrownNodes(NamedTuple):
    """A grown tree, in the order of growth: indices in the draft vocabulary (V + i: further token i), parents (-1: the last
    row given) and depths, and path log-probabilities."""

    tokens: list[int]
    parents: list[int]
    depths: list[int]
    values: list[float]


class GrowthBuffers:
    """Arrays of one round's growth of `depth` levels, `width` nodes each, behind `first` rows of level 0. least: the value
    below which no node is grown.
    """

    def __init__(self, depth: int, width: int, first: int, least: float) -> None:
        self.depth, self.width, self.first, self.least = depth, width, first, least
        nodes = width + (depth - 1) * width * width
        rows, longest = max(first, width), first + depth
        self._starts = np.zeros((depth, rows + 1), np.int64)
        self._paths = np.zeros((depth, max(first * (first + 1) // 2, width * longest)), np.int64)
        self._row_nodes = np.full((depth, width), -1, np.int64)
        # Tokens, parents and depths.
        self._nodes, self._values = np.zeros((3, nodes), np.int64), zeros(nodes)

    @property
    def record(self) -> Growth:
        """Without what a layer knows, matrices, tables and group size, and what is a round's own."""
        return Growth(
            levels=0,
            counters=0,
            length=0,
            start=0,
            further_embedded=0,
            depth=self.depth,
            width=self.width,
            least=np.float32(self.least),
            drafted=0,
            embedded=0,
            cos=0,
            sin=0,
            path_start=address(self._starts),
            starts_stride=self._starts.shape[1],
            paths=address(self._paths),
            paths_stride=self._paths.shape[1],
            group_rows=0,
            row_nodes=address(self._row_nodes),
            tokens=address(self._nodes[0]),
            parents=address(self._nodes[1]),
            depths=address(self._nodes[2]),
            values=address(self._values),
        )

    def grown(self, count: int) -> GrownNodes:
        """The first `count` nodes."""
        tokens, parents, depths = self._nodes[:, :count].tolist()
        return GrownNodes(tokens, parents, depths, self._values[:count].tolist())


def fresh_counters(threads: int) -> Int64Array:
    """int64 [1 + threads, LEVEL_PHASES, 16] of zeros: of one level."""
    return np.zeros((1 + threads, LEVEL_PHASES, COUNTER_STRIDE), np.int64)


@dataclass(frozen=True)
class FurtherTokens:
    """Tokens of one session beside the draft vocabulary: their rows of the head, packed, and their embeddings [F, H]."""

    count: int
    matrix: npt.NDArray[np.uint8]
    embedded: Floats


NONE_FURTHER = FurtherTokens(0, np.zeros(0, np.uint8), np.zeros((0, 0), np.float32))


def zeros(*shape: int) -> Floats:
    """float32 zeros."""
    return np.zeros(shape, np.float32)


def address(array: npt.NDArray[Any]) -> int:
    """Where an array begins; whoever keeps the address keeps the array."""
    # Not `array.ctypes`, which builds an object each time.
    return int(array.__array_interface__["data"][0])
