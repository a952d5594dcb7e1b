"""Random passes over paged memory with what they must give: one row at a time, in float64, by the definition."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.cuda.kernels import PAGE_ROWS, SPLIT_ROWS, View, tile_lines
from models.passes import depths


@dataclass(frozen=True)
class Case:
    """query: [R, heads, D], R padded. keys, values: [rows, kv_heads, D], NaN wherever no real row sees. seen: the cache rows
    of each real row's path, in order."""

    query: Tensor
    keys: Tensor
    values: Tensor
    view: View
    seen: list[list[int]]

    def to(self, device: str) -> Case:
        tensors = {
            name: part.to(device) if isinstance(part, Tensor) else part for name, part in vars(self.view).items()
        }
        return Case(self.query.to(device), self.keys.to(device), self.values.to(device), View(**tensors), self.seen)


def random_case(
    seed: int,
    sessions: list[tuple[int, int]],
    *,
    heads: int,
    kv_heads: int,
    width: int,
    dtype: torch.dtype = torch.float32,
    padding: int = 3,
) -> Case:
    """sessions: committed rows and tree rows of each. Pages are dealt out of order."""
    rng = np.random.default_rng(seed)
    pages_of = [-(-(prefix + rows) // PAGE_ROWS) for prefix, rows in sessions]
    pages = rng.permutation(sum(pages_of) + 2)
    tables = np.split(pages, np.cumsum(pages_of))[: len(sessions)]
    rows = sum(count for _, count in sessions)
    deepest, seen = 1, []
    table_of, prefixes, ends, tile_rows, tile_counts = [], [], [], [], []
    tile = tile_lines(heads // kv_heads) // (heads // kv_heads)
    for index, ((prefix, count), table) in enumerate(zip(sessions, tables, strict=True)):
        parents = [int(rng.integers(-1, row)) for row in range(count)]
        place = [int(table[at // PAGE_ROWS]) * PAGE_ROWS + at % PAGE_ROWS for at in range(prefix + count)]
        first = len(seen)
        for row, depth in enumerate(depths(parents)):
            path, at = [], row
            while at >= 0:
                path.append(place[prefix + at])
                at = parents[at]
            seen.append(place[:prefix] + path[::-1])
            deepest = max(deepest, depth + 1)
            table_of.append(index)
            prefixes.append(prefix)
            ends.append(prefix + depth + 1)
        if prefix >= SPLIT_ROWS:
            starts = range(first, first + count, tile)
            tile_rows += starts
            tile_counts += [min(tile, first + count - start) for start in starts]
    longest = max(ends)
    splits = -(-longest // SPLIT_ROWS) + 1
    table = rng.integers(0, len(pages), (len(sessions) + 1, splits * (SPLIT_ROWS // PAGE_ROWS)))
    for index, own in enumerate(tables):
        table[index, : len(own)] = own
    paths = rng.integers(0, len(pages) * PAGE_ROWS, (rows + padding, deepest + 5))
    for row, path in enumerate(seen):
        own_path = path[prefixes[row] :]
        paths[row, : len(own_path)] = own_path

    def ints(values: object) -> Tensor:
        return torch.from_numpy(np.asarray(values, np.int32))

    view = View(
        table_of=ints(table_of + [0] * padding),
        prefixes=ints(prefixes + [0] * padding),
        ends=ints(ends + [0] * padding),
        tables=ints(table),
        paths=ints(paths),
        tile_rows=ints([*tile_rows, 0]),
        tile_counts=ints([*tile_counts, 0]),
        splits=splits,
        tail_splits=(SPLIT_ROWS + deepest - 2) // SPLIT_ROWS + 1,
    )
    shape = (len(pages) * PAGE_ROWS, kv_heads, width)
    keys, values = (torch.from_numpy(rng.standard_normal(shape)).to(dtype) for _ in range(2))
    unseen = torch.ones(shape[0], dtype=torch.bool)
    unseen[sorted({at for path in seen for at in path})] = False
    keys[unseen] = values[unseen] = torch.nan
    query = torch.from_numpy(rng.standard_normal((rows + padding, heads, width))).to(dtype)
    return Case(query, keys, values, view, seen)


def expected(case: Case, window: int | None) -> Tensor:
    """float64 [R, heads * D]."""
    rows, heads, width = case.query.shape
    out = torch.zeros((rows, heads, width), dtype=torch.float64)
    group = heads // case.keys.shape[1]
    for row, path in enumerate(case.seen):
        visible = path if window is None else path[-window:]
        keys, values = (cells[visible].double().repeat_interleave(group, 1) for cells in (case.keys, case.values))
        scores = torch.einsum("hd,khd->hk", case.query[row].double(), keys) * width**-0.5
        out[row] = torch.einsum("hk,khd->hd", torch.softmax(scores, -1), values)
    return out.view(rows, heads * width)
