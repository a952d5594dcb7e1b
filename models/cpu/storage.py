"""Pages of keys and values in the layout the attention kernel reads."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from contracts.errors import InvalidArgument
from models.backend import Int64Array
from models.config import DecoderConfig
from models.cpu.formats import PANEL
from models.cpu.jit import jit_entry
from models.cpu.packing import panels
from models.kv import page_count

# Rows of a page, whole panels of them: few, so that a session wastes little of its last page, but enough that sweeps over
# keys and values hardly notice the table (docs/decisions/0012-prefix-sharing.md).
PAGE_ROWS = 64
_CACHE_LINE = 64


class PagedStorage:
    """A page is keys float32 [lanes, P / 16, head_dim, 16], then values float32 [lanes, head_dim / 16, P, 16], P its rows.

    A lane is a layer's key-value head, layer-major; the values' head_dim is padded to whole panels. The arena holds all
    pages from the start, but the system gives memory only to those that were ever written.
    """

    def __init__(self, config: DecoderConfig, budget_tokens: int) -> None:
        lanes = config.num_layers * config.num_kv_heads
        padded = panels(config.head_dim)
        keys, values = lanes * PAGE_ROWS * config.head_dim, lanes * PAGE_ROWS * padded * PANEL
        count = page_count(budget_tokens, PAGE_ROWS)
        self.page_rows = PAGE_ROWS
        self.page_bytes = 4 * (keys + values)
        self.row_bytes = self.page_bytes // PAGE_ROWS
        arena = _aligned(count * self.page_bytes).reshape(count, keys + values)
        self.arena = arena
        self.address = int(arena.__array_interface__["data"][0])
        self._keys = arena[:, :keys].reshape(count, lanes, PAGE_ROWS // PANEL, config.head_dim, PANEL)
        self._values = arena[:, keys:].reshape(count, lanes, padded, PAGE_ROWS, PANEL)

    def copy(self, sources: Int64Array, targets: Int64Array) -> None:
        if len(sources):
            _copy(self._keys, self._values, sources, targets)

    def copy_start(self, source: int, target: int, count: int) -> None:
        whole, rest = divmod(count, PANEL)
        self._keys[target, :, :whole] = self._keys[source, :, :whole]
        if rest:
            self._keys[target, :, whole, :, :rest] = self._keys[source, :, whole, :, :rest]
        self._values[target, :, :, :count] = self._values[source, :, :, :count]

    def poison(self, rows: Int64Array) -> None:
        page, row = rows // PAGE_ROWS, rows % PAGE_ROWS
        self._keys[page, :, row // PANEL, :, row % PANEL] = np.nan
        self._values[page, :, :, row] = np.nan


def _aligned(size: int) -> npt.NDArray[np.float32]:
    """`size` bytes of untouched memory as floats, from the start of a cache line."""
    try:
        raw = np.empty(size + _CACHE_LINE, np.uint8)
    except MemoryError as error:
        raise InvalidArgument("kv_budget_tokens", f"{size} bytes of KV cannot be had") from error
    start = -raw.__array_interface__["data"][0] % _CACHE_LINE
    return raw[start : start + size].view(np.float32)


@jit_entry
def _copy(keys, values, sources, targets):  # type: ignore[no-untyped-def]
    for i in range(sources.shape[0]):
        source, s = sources[i] // PAGE_ROWS, sources[i] % PAGE_ROWS
        target, t = targets[i] // PAGE_ROWS, targets[i] % PAGE_ROWS
        for lane in range(keys.shape[1]):
            for d in range(keys.shape[3]):
                keys[target, lane, t // PANEL, d, t % PANEL] = keys[source, lane, s // PANEL, d, s % PANEL]
            for block in range(values.shape[2]):
                for d in range(PANEL):
                    values[target, lane, block, t, d] = values[source, lane, block, s, d]
