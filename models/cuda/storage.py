"""The cache on a device: all pages in one tensor, with one page more for the rows that only pad a pass."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from contracts.errors import InvalidArgument
from models.backend import Int64Array
from models.config import DecoderConfig
from models.cuda.kernels import PAGE_ROWS
from models.kv import page_count


class DeviceStorage:
    """keys, values: [layers, rows, kv_heads, head_dim] in the weights' dtype, keys rotated; `scratch` is the first row of
    the page that no slot ever gets.

    The tensors live as long as this object: captured graphs hold their addresses.
    """

    def __init__(self, config: DecoderConfig, budget_tokens: int, like: Tensor) -> None:
        self.page_rows = PAGE_ROWS
        self.scratch = page_count(budget_tokens, PAGE_ROWS) * PAGE_ROWS
        rows = self.scratch + PAGE_ROWS
        if rows >= 1 << 31:
            raise InvalidArgument("kv_budget_tokens", f"{budget_tokens}: rows are numbered by 31 bits")
        try:
            self._cells = like.new_empty((2, config.num_layers, rows, config.num_kv_heads, config.head_dim))
        except torch.OutOfMemoryError as error:
            raise InvalidArgument("kv_budget_tokens", f"{budget_tokens} tokens of KV do not fit: {error}") from error
        # What padding rows never wrote yet is read by nobody, but zeros keep a stray read from being NaN by chance.
        self._cells[:, :, self.scratch :] = 0
        self.keys, self.values = self._cells
        self.row_bytes = self._cells.nbytes // rows

    def copy(self, sources: Int64Array, targets: Int64Array) -> None:
        if len(sources):
            both = torch.from_numpy(np.stack([sources, targets])).to(self._cells.device)
            self._cells[:, :, both[1]] = self._cells[:, :, both[0]]

    def copy_start(self, source: int, target: int, count: int) -> None:
        source, target = source * PAGE_ROWS, target * PAGE_ROWS
        self._cells[:, :, target : target + count] = self._cells[:, :, source : source + count]

    def poison(self, rows: Int64Array) -> None:
        self._cells[:, :, torch.from_numpy(rows).to(self._cells.device)] = torch.nan
