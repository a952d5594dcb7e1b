"""The block of memory that a head's round is called with (models/cpu/draft_round.py): laid out once for rounds of one shape,
copied by each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from contracts.errors import InvalidArgument
from models.backend import Int64Array
from models.cpu.draft_buffers import Floats, FurtherTokens, GrowthBuffers, LevelBuffers, address
from models.cpu.draft_growth import LEVEL_FIELDS, LEVEL_PHASES, Growth
from models.cpu.draft_level import Level
from models.cpu.draft_round import FIRST_AT, GIVEN_AT, GROWTH_AT, LEVEL_AT, MODEL_AT, WORK_AT, First
from models.cpu.formats import PANEL
from models.cpu.packing import panels
from models.cpu.records import Model
from models.cpu.storage import PAGE_ROWS
from models.cpu.stored import in_memory
from models.cpu.sync import COUNTER_STRIDE
from models.kv import Slot, page_count

# The fields that are a round's own follow each other: the last ones of `Level` and the first ones of `Growth`, and the last
# ones of `First`, behind which stands what it is given.
_OWN_LEVEL = LEVEL_AT + Level._fields.index("further")
_OWN_FIRST = FIRST_AT + First._fields.index("rows")


@dataclass(frozen=True)
class TargetRows:
    """What rows of the target's are fused from: hidden rows of each tap, float32 [N, H], and the tokens behind them, int64
    [N], whose embeddings are fused with them."""

    taps: Sequence[Floats]
    tokens: Int64Array

    @property
    def count(self) -> int:
        return len(self.tokens)

    def places(self, depth: int, table: npt.NDArray[Any]) -> list[int]:
        """`First.given` (models.cpu.draft_round), whose addresses are good as long as this is. depth: floats of a fused row.
        table: [T, H], of the tokens' embeddings. Raises InvalidArgument for what compiled code could not read."""
        hidden, tokens = table.shape[1], self.tokens.tolist()
        if (len(self.taps) + 1) * hidden != depth or not tokens:
            raise InvalidArgument("given", f"{len(self.taps)} taps, {len(tokens)} rows")
        for rows in self.taps:
            if rows.shape != (len(tokens), hidden) or not rows.flags.c_contiguous or rows.dtype != np.float32:
                raise InvalidArgument("given", f"rows {rows.dtype} of shape {rows.shape} and strides {rows.strides}")
        if min(tokens) < 0 or max(tokens) >= len(table):
            raise InvalidArgument("given", f"token ids must be within [0, {len(table)})")
        return [*map(address, self.taps), *tokens]


class RoundBlock:
    """Rounds of one shape over these buffers. taps: rows of the target's that a row may be fused from. The rest of the
    records is the caller's to have filled in.
    """

    def __init__(
        self,
        model: Model,
        buffers: LevelBuffers,
        level: Level,
        kept: GrowthBuffers,
        growth: Growth,
        first: First,
        *,
        taps: int,
        threads: int,
    ) -> None:
        self.buffers, self.kept = buffers, kept
        self._levels_at = GIVEN_AT + taps + kept.first
        self._counters_at = self._levels_at + kept.depth * LEVEL_FIELDS
        phases = kept.depth * LEVEL_PHASES + 1
        self._size = self._counters_at + (1 + threads) * phases * COUNTER_STRIDE
        self._records = np.zeros(GIVEN_AT, np.int64)
        records = (MODEL_AT, model), (WORK_AT, buffers.work), (LEVEL_AT, level), (GROWTH_AT, growth), (FIRST_AT, first)
        for place, record in records:
            self._records[place : place + len(record)] = in_memory(record)

    def fits(self, buffers: LevelBuffers, depth: int, width: int, least: float, first: int) -> bool:
        """Whether rounds of that shape, of so many rows of level 0, are run with it."""
        kept = self.kept
        return (
            self.buffers is buffers
            and (kept.depth, kept.width, kept.least) == (depth, width, least)
            and first <= kept.first
        )

    def fresh(
        self, slot: Slot, rows: int, start: int, context: int, taps: int, given: Sequence[int], further: FurtherTokens
    ) -> Int64Array:
        """A round's own block, which it and its helpers keep. context: rows of the slot that it comes to, drafted ones
        included. given: as `First.given` says."""
        block = np.zeros(self._size, np.int64)
        block[:GIVEN_AT] = self._records
        place = address(block)
        block[_OWN_LEVEL : GROWTH_AT + 5] = (
            further.count,
            address(further.matrix),
            panels(further.count) * PANEL,
            place + 8 * self._levels_at,
            place + 8 * self._counters_at,
            slot.length,
            start,
            address(further.embedded),
        )
        pages = page_count(context, PAGE_ROWS)
        block[_OWN_FIRST : GIVEN_AT + len(given)] = (
            rows,
            address(slot.table),
            pages,
            taps,
            place + 8 * GIVEN_AT,
            *given,
        )
        return block
