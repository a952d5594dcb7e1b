"""A ragged pass, checked and flattened: what every implementation computes from, whatever computes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from contracts.errors import InvalidArgument, ResourceExhausted
from models.backend import BackendInfo, Int64Array, RowBlock
from models.kv import Slot, SlotPool

FINAL_NORM_TAP = "final_norm"
_LAYER_TAP = "layer:"


class Span(NamedTuple):
    """One block with its place in the pass.

    Its rows are rows [start, stop) of the pass. `wanted` int64 [W] are the block's rows whose logits are wanted.
    `parents` int64 [slot.staged + N] are those of all staged rows, this block's included. The lists say the same in plain
    numbers: a few are looked through faster so, by much where a pass has emptied the caches.
    """

    slot: Slot
    block: RowBlock
    start: int
    stop: int
    token_list: Sequence[int]
    position_list: Sequence[int]
    wanted_list: Sequence[int]
    parent_list: Sequence[int]

    @property
    def wanted(self) -> Int64Array:
        return np.array(self.wanted_list, np.int64)

    @property
    def parents(self) -> Int64Array:
        return np.array(self.parent_list, np.int64)

    @property
    def staged_before(self) -> int:
        return len(self.parent_list) - (self.stop - self.start)


def plan(pool: SlotPool, info: BackendInfo, blocks: Sequence[RowBlock]) -> list[Span]:
    """Check all blocks before anything is computed; see `Backend.forward` for what is raised."""
    spans: list[Span] = []
    start = 0
    for block in blocks:
        slot = pool.own(block.slot)
        if any(span.slot is slot for span in spans):
            raise InvalidArgument("blocks", "a slot may appear only once in a pass")
        count = len(block.token_ids)
        room = slot.capacity - slot.length - slot.staged
        if count > room:
            raise ResourceExhausted("blocks.token_ids", f"{count} rows wanted, the slot has room for {room}")
        span = Span(
            slot,
            block,
            start,
            start + count,
            block.token_ids.tolist(),
            block.positions.tolist(),
            range(count) if block.logits_for is None else block.logits_for.tolist(),
            slot.parents.tolist() + block.parents.tolist(),
        )
        _check(span, info)
        spans.append(span)
        start += count
    for span in spans:
        pool.make_writable(span.slot, span.stop - span.start)
    return spans


def tap_layers(taps: Sequence[str], num_layers: int) -> dict[str, int]:
    """Layer index of each "layer:k" tap. Raises InvalidArgument for a tap that does not exist."""
    layers = {}
    for tap in taps:
        if tap == FINAL_NORM_TAP:
            continue
        number = tap.removeprefix(_LAYER_TAP)
        if number == tap or not number.isdecimal() or int(number) >= num_layers:
            known = f"{FINAL_NORM_TAP}, {_LAYER_TAP}0 to {_LAYER_TAP}{num_layers - 1}"
            raise InvalidArgument("taps", f"{tap!r} does not exist; known: {known}")
        layers[tap] = int(number)
    return layers


def _check(span: Span, info: BackendInfo) -> None:
    block, count = span.block, span.stop - span.start
    tokens, positions, parents = span.token_list, span.position_list, span.parent_list
    if count == 0 or len(positions) != count or len(block.parents) != count:
        raise InvalidArgument("blocks", "token_ids, positions and parents must have one length of at least 1")
    if min(tokens) < 0 or max(tokens) >= info.vocab_size:
        raise InvalidArgument("blocks.token_ids", f"must lie within 0..{info.vocab_size - 1}")
    if max(positions) >= info.context_length:
        raise InvalidArgument("blocks.positions", f"must lie below the context length {info.context_length}")
    if block.logits_for is not None and any(not 0 <= row < count for row in span.wanted_list):
        raise InvalidArgument("blocks.logits_for", f"must lie within 0..{count - 1}")
    if block.inputs is not None and tuple(block.inputs.shape) != (count, info.hidden_size):
        raise InvalidArgument("blocks.inputs", f"{tuple(block.inputs.shape)}, expected ({count}, {info.hidden_size})")
    before, length = span.staged_before, span.slot.length
    for row in range(before, len(parents)):
        if not -1 <= parents[row] < row:
            raise InvalidArgument("blocks.parents", "a parent must be -1 or an earlier staged row")
    if positions != [length + depth for depth in depths(parents)[before:]]:
        raise InvalidArgument("blocks.positions", "a row must stand one position after its parent")


def depths(parents: Sequence[int]) -> list[int]:
    """Number of ancestors of each row."""
    depth: list[int] = []
    for parent in parents:
        depth.append(depth[parent] + 1 if parent >= 0 else 0)
    return depth


def ancestry(parents: Int64Array) -> np.ndarray:
    """bool [N, N]: entry (r, a) says that row r sees row a (its ancestors and itself)."""
    seen = np.eye(len(parents), dtype=np.bool_)
    for row, parent in enumerate(parents.tolist()):
        if parent >= 0:
            seen[row] |= seen[parent]
    return seen
