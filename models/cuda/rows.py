"""The rows of a pass as numbers: where each stands, what it sees and where its keys go. Pure numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from models.backend import Int64Array
from models.cuda.kernels import PAGE_ROWS, SPLIT_ROWS
from models.passes import Span, depths


@dataclass(frozen=True)
class PassRows:
    """All rows of a pass, N of S sessions. Cache rows as in models.kv; a row's path is its ancestors and itself, in order.

    tokens, positions, targets (cache row written), table_of (session), prefixes (committed rows), ends (rows seen): int64
    [N].
    paths: int64 [N, deepest], cache rows, padded with 0. tables: per session its pages that hold rows seen.
    wanted: int64, ascending, the rows whose logits are computed. order: int64 [W], which of them each one asked for is; None
    where they were asked for as they stand.
    """

    tokens: Int64Array
    positions: Int64Array
    targets: Int64Array
    table_of: Int64Array
    prefixes: Int64Array
    ends: Int64Array
    paths: Int64Array
    tables: list[Int64Array]
    wanted: Int64Array
    order: Int64Array | None

    def __len__(self) -> int:
        return len(self.tokens)

    def wanted_within(self, start: int, stop: int) -> Int64Array:
        first, last = np.searchsorted(self.wanted, (start, stop))
        return self.wanted[first:last]

    def tiles(self, start: int, stop: int, rows: int) -> tuple[list[int], list[int]]:
        """First rows, counted from `start`, and lengths of runs of at most `rows` rows of one session within [start, stop),
        where its prefix has a whole split to read together."""
        firsts: list[int] = []
        counts: list[int] = []
        sessions, prefixes = self.table_of.tolist(), self.prefixes.tolist()
        at = start
        while at < stop:
            end = at + 1
            while end < min(stop, at + rows) and sessions[end] == sessions[at]:
                end += 1
            if prefixes[at] >= SPLIT_ROWS:
                firsts.append(at - start)
                counts.append(end - at)
            at = end
        return firsts, counts


def pass_rows(spans: Sequence[Span]) -> PassRows:
    """Flatten checked blocks; nothing of them is staged yet."""
    lengths = [span.slot.length for span in spans]
    shares = [span.stop - span.start for span in spans]
    targets, ends, paths = zip(*(_below(span) for span in spans), strict=True)
    deepest = max(path.shape[1] for path in paths)
    asked = _joined([span.start + span.wanted for span in spans])
    wanted, order = np.unique(asked, return_inverse=True)
    return PassRows(
        tokens=_joined([span.block.token_ids for span in spans]),
        positions=_joined([span.block.positions for span in spans]),
        targets=_joined(targets),
        table_of=np.repeat(np.arange(len(spans)), shares),
        prefixes=np.repeat(np.array(lengths, np.int64), shares),
        ends=_joined(ends),
        paths=_joined([np.pad(path, ((0, 0), (0, deepest - path.shape[1]))) for path in paths]),
        tables=[span.slot.table[: -(-length // PAGE_ROWS)] for span, length in zip(spans, lengths, strict=True)],
        wanted=wanted,
        order=None if np.array_equal(asked, wanted) else order,
    )


def _below(span: Span) -> tuple[Int64Array, Int64Array, Int64Array]:
    """targets, ends and paths of the block's rows."""
    length, before = span.slot.length, span.staged_before
    places = span.slot.rows(length, length + len(span.parents))
    parents = span.parents.tolist()
    depth = depths(parents)
    paths = np.zeros((len(parents), max(depth) + 1), np.int64)
    for row, parent in enumerate(parents):
        if parent >= 0:
            paths[row, : depth[row]] = paths[parent, : depth[row]]
        paths[row, depth[row]] = places[row]
    return places[before:], length + 1 + np.array(depth[before:], np.int64), paths[before:]


def _joined(parts: Sequence[Int64Array]) -> Int64Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
