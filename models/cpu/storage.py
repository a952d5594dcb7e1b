"""Keys and values of one slot in the layout the attention kernel reads."""

from __future__ import annotations

import numpy as np

from models.backend import Int64Array
from models.config import DecoderConfig
from models.cpu.jit import jit_entry
from models.cpu.packing import panels
from models.cpu.tile import PANEL


class PanelStorage:
    """keys: float32 [lanes, capacity / 16, head_dim, 16]; values: float32 [lanes, head_dim / 16, capacity, 16].

    A lane is a layer's key-value head, layer-major. Capacity and head_dim are padded to whole panels.
    """

    def __init__(self, config: DecoderConfig, capacity: int) -> None:
        lanes = config.num_layers * config.num_kv_heads
        blocks = panels(capacity)
        self.capacity = blocks * PANEL
        self.keys = np.empty((lanes, blocks, config.head_dim, PANEL), np.float32)
        self.values = np.empty((lanes, panels(config.head_dim), self.capacity, PANEL), np.float32)

    def move(self, sources: Int64Array, start: int) -> None:
        _move(self.keys, self.values, sources, start)

    def poison(self, start: int, stop: int) -> None:
        rows = np.arange(start, stop)
        self.keys[:, rows // PANEL, :, rows % PANEL] = np.nan
        self.values[:, :, start:stop] = np.nan


@jit_entry
def _move(keys, values, sources, start):  # type: ignore[no-untyped-def]
    for lane in range(keys.shape[0]):
        for i in range(sources.shape[0]):
            source, target = sources[i], start + i
            if source == target:
                continue
            for d in range(keys.shape[2]):
                keys[lane, target // PANEL, d, target % PANEL] = keys[lane, source // PANEL, d, source % PANEL]
            for block in range(values.shape[1]):
                for d in range(PANEL):
                    values[lane, block, target, d] = values[lane, block, source, d]
