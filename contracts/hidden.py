"""The target's hidden rows, as the verifier exports them for draft heads (docs/decisions/0011-hidden-rows.md).

Row i is the target's state after the token at position i. With a published prefix of L tokens there are rows 0 .. L - 2:
the anchor, token L - 1, has not been run yet. A *tap* names where in the target a row is read: "final_norm" (what the head
reads) or "layer:k" (raw output of layer k, 0-based).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from contracts.errors import InvalidArgument

Rows = npt.NDArray[np.float32]

# Rows that one message may carry; more travel in several.
MAX_PART_BYTES = 4 << 20
# What a proposer refuses (FailedPrecondition) where it lacks rows that the caller takes as carried: send from base again.
HIDDEN_BASE = "hidden.start"


@dataclass(frozen=True, eq=False)
class HiddenRows:
    """Consecutive rows of one session: per tap float32 [count, H], of positions start .. start + count - 1.

    base: position of the first row that its receiver needs of the session: those before it never travel. All taps have one
    count of rows; InvalidArgument otherwise. Equal where positions, taps and every bit of the rows are.
    """

    start: int
    taps: Mapping[str, Rows]
    base: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.base <= self.start:
            raise InvalidArgument("hidden.base", f"{self.base} is outside [0, {self.start}]")
        # No sets and no generators: every round's rows come through here.
        count = -1
        for rows in self.taps.values():
            if rows.ndim != 2 or count not in (-1, len(rows)):
                raise self._misshapen()
            count = len(rows)
        if count < 0:
            raise self._misshapen()

    def _misshapen(self) -> InvalidArgument:
        shapes = sorted({rows.shape for rows in self.taps.values()})
        return InvalidArgument("hidden", f"start {self.start}, rows of shapes {shapes}")

    @property
    def count(self) -> int:
        return len(next(iter(self.taps.values())))

    @property
    def stop(self) -> int:
        return self.start + self.count

    @property
    def row_bytes(self) -> int:
        """Bytes of one position over all taps."""
        return sum(rows.shape[1] * rows.itemsize for rows in self.taps.values())

    def only(self, taps: Iterable[str]) -> HiddenRows:
        """These taps' rows. Raises InvalidArgument for a tap that is not among them."""
        missing = [tap for tap in taps if tap not in self.taps]
        if missing:
            raise InvalidArgument("hidden.taps", f"lacks {missing[0]!r}; known: {', '.join(sorted(self.taps))}")
        return HiddenRows(self.start, {tap: self.taps[tap] for tap in taps}, self.base)

    def between(self, start: int, stop: int) -> HiddenRows:
        """Views of positions start .. stop - 1, which must be among these."""
        if not self.start <= start <= stop <= self.stop:
            raise InvalidArgument("hidden", f"[{start}, {stop}) is not within [{self.start}, {self.stop})")
        low, high = start - self.start, stop - self.start
        return HiddenRows(start, {tap: rows[low:high] for tap, rows in self.taps.items()}, self.base)

    def based(self, base: int) -> HiddenRows:
        """The same rows for a receiver that needs those from `base` on."""
        return self if base == self.base else HiddenRows(self.start, self.taps, base)

    def parts(self, most_bytes: int = MAX_PART_BYTES) -> Iterator[HiddenRows]:
        """The rows in order, in parts of at most `most_bytes` but at least one row."""
        step = rows_within(most_bytes, self.row_bytes)
        if 0 < self.count <= step:
            yield self
            return
        for start in range(self.start, self.stop, step):
            yield self.between(start, min(start + step, self.stop))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, HiddenRows)
            and (self.start, self.base) == (other.start, other.base)
            and self.taps.keys() == other.taps.keys()
            and all(
                rows.shape == other.taps[tap].shape and rows.tobytes() == other.taps[tap].tobytes()
                for tap, rows in self.taps.items()
            )
        )

    def __hash__(self) -> int:
        return hash((self.start, self.count, *sorted(self.taps)))


def rows_within(most_bytes: int, row_bytes: int) -> int:
    """How many rows of `row_bytes` one message carries: at least one."""
    return max(1, most_bytes // max(1, row_bytes))


def joined(parts: Sequence[HiddenRows]) -> HiddenRows:
    """Parts that follow each other as one. Raises InvalidArgument where they do not, or have other taps."""
    first = parts[0]
    if len(parts) == 1:
        return first
    for before, part in pairwise(parts):
        if part.start != before.stop or part.taps.keys() != first.taps.keys():
            raise InvalidArgument("hidden", f"rows from {part.start} do not follow those up to {before.stop}")
    whole = {tap: np.concatenate([part.taps[tap] for part in parts]) for tap in first.taps}
    return HiddenRows(first.start, whole, first.base)
