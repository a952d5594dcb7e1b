"""The inputs of a pass in one static device buffer, filled by one copy from one host buffer, pinned where there is a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from models.cuda.kernels import PAGE_ROWS, View
from models.cuda.layout import Layout
from models.cuda.rows import PassRows

Given = Sequence[tuple[int, Tensor]]


class HostBuffer:
    """Where the next pass's inputs are written before they go to the device; grows, is never shrunk.

    `filled` must be called behind the copies, and `room` waits for them: a pass may still be reading when the next comes.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._ints = self._new(1 << 12, torch.int32)
        self._floats = self._new(1, torch.float32)
        self._read = torch.cuda.Event() if self._cuda else None

    def room(self, ints: int, floats: int) -> tuple[Tensor, Tensor]:
        """int32 [ints] and float32 [floats], nobody's any more."""
        if self._read is not None:
            self._read.synchronize()
        if len(self._ints) < ints:
            self._ints = self._new(2 * ints, torch.int32)
        if len(self._floats) < floats:
            self._floats = self._new(floats, torch.float32)
        return self._ints[:ints], self._floats[:floats]

    def filled(self) -> None:
        if self._read is not None:
            self._read.record()

    def _new(self, count: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(count, dtype=dtype, pin_memory=self._cuda)


class PassInputs:
    """The device's side of one layout: int32 views named by `Layout.fields`, and `given` float32 [rows, hidden].

    Addresses never change, so that a captured pass reads whatever was loaded last.
    """

    def __init__(self, layout: Layout, hidden_size: int, device: torch.device) -> None:
        self.layout = layout
        self._size = sum(int(np.prod(shape)) for shape in layout.fields.values())
        self._ints = torch.zeros(self._size, dtype=torch.int32, device=device)
        views = dict(_cut(self._ints, layout))
        self.tokens: Tensor = views["tokens"]
        self.positions: Tensor = views["positions"]
        self.targets: Tensor = views["targets"]
        self.given_rows: Tensor = views["given_rows"]
        self.wanted_rows: Tensor = views["wanted_rows"]
        self.given = torch.zeros((layout.rows if layout.given else 0, hidden_size), device=device)
        self.view = View(
            table_of=views["table_of"],
            prefixes=views["prefixes"],
            ends=views["ends"],
            tables=views["tables"],
            paths=views["paths"],
            tile_rows=views["tile_rows"],
            tile_counts=views["tile_counts"],
            splits=layout.splits,
            tail_splits=layout.tail_splits,
        )

    def load(
        self, rows: PassRows, start: int, stop: int, given: Given, host: HostBuffer, scratch: int, tile: int
    ) -> None:
        """Fill in rows [start, stop) of a pass and padding behind them.

        given: first row and float32 [n, hidden] of rows of the pass that come as vectors in place of tokens. scratch: first
        row of the page that padding writes to. tile: rows that a tile of the attention has room for.
        """
        ints, floats = host.room(self._size, self.given.numel())
        count = stop - start
        own = {name: view.numpy() for name, view in _cut(ints, self.layout)}
        for name in ("tokens", "positions", "targets", "table_of", "prefixes", "ends"):
            own[name][:count] = getattr(rows, name)[start:stop]
            # Padding: token 0 at position 0, which sees nothing (its end is 0).
            own[name][count:] = 0
        first_table = int(rows.table_of[start])
        own["table_of"][:count] -= first_table
        spare = np.arange(self.layout.rows - count)
        own["targets"][count:] = scratch + spare % PAGE_ROWS
        own["paths"][:count, : rows.paths.shape[1]] = rows.paths[start:stop]
        for index, table in enumerate(rows.tables[first_table : int(rows.table_of[stop - 1]) + 1]):
            own["tables"][index, : len(table)] = table
        firsts, counts = rows.tiles(start, stop, tile)
        for name, numbers in (
            ("tile_rows", firsts),
            ("tile_counts", counts),
            ("wanted_rows", rows.wanted_within(start, stop) - start),
            ("given_rows", ()),
        ):
            own[name][: len(numbers)] = numbers
            own[name][len(numbers) :] = 0
        vectors = floats.view(self.given.shape)
        for first, block in given:
            low, high = max(first, start), min(first + len(block), stop)
            if low < high:
                own["given_rows"][low - start : high - start] = 1
                vectors[low - start : high - start] = block[low - first : high - first]
        self._ints.copy_(ints, non_blocking=True)
        if given:
            self.given.copy_(vectors, non_blocking=True)
        host.filled()


def _cut(flat: Tensor, layout: Layout) -> Iterator[tuple[str, Tensor]]:
    at = 0
    for name, shape in layout.fields.items():
        size = int(np.prod(shape))
        yield name, flat[at : at + size].view(shape)
        at += size
