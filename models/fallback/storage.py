"""Keys and values in pages that we own, and the cache object that Transformers' attention modules write them through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DummyLayer

from contracts.errors import InvalidArgument
from models.backend import Int64Array
from models.kv import Slot, page_count

_PAGE_ROWS = 16

# Key-value heads, width of a key, width of a value.
LayerShape = tuple[int, int, int]


class LayerStorage:
    """Of each layer keys [heads, rows of all pages, key width] and values [heads, rows, value width], or None for a layer
    that keeps nothing.
    """

    def __init__(
        self, shapes: Sequence[LayerShape | None], budget_tokens: int, dtype: torch.dtype, device: str
    ) -> None:
        self.page_rows = _PAGE_ROWS
        rows = page_count(budget_tokens, _PAGE_ROWS) * _PAGE_ROWS
        self._device = device
        self.layers: list[tuple[Tensor, Tensor] | None] = []
        for shape in shapes:
            if shape is None:
                self.layers.append(None)
                continue
            heads, *widths = shape
            keys, values = (torch.empty((heads, rows, width), dtype=dtype, device=device) for width in widths)
            self.layers.append((keys, values))
        self._all = [cache for layer in self.layers if layer is not None for cache in layer]
        self.row_bytes = sum(cache.nbytes for cache in self._all) // rows

    def place(self, slot: Slot, stop: int) -> slice | Tensor:
        """Index of the slot's rows [0, stop): a slice where its pages follow each other, as those of a lone session do."""
        rows = slot.rows(0, stop)
        if (np.diff(slot.table[: page_count(stop, _PAGE_ROWS)]) == 1).all():
            return slice(int(rows[0]), int(rows[0]) + stop)
        return torch.from_numpy(rows).to(self._device)

    def copy(self, sources: Int64Array, targets: Int64Array) -> None:
        to, source = (torch.from_numpy(rows).to(self._device) for rows in (targets, sources))
        for cache in self._all:
            cache[:, to] = cache[:, source]

    def copy_start(self, source: int, target: int, count: int) -> None:
        source, target = source * _PAGE_ROWS, target * _PAGE_ROWS
        for cache in self._all:
            cache[:, target : target + count] = cache[:, source : source + count]

    def poison(self, rows: Int64Array) -> None:
        index = torch.from_numpy(rows).to(self._device)
        for cache in self._all:
            cache[:, index] = float("nan")


class PagedCache(Cache):
    """Transformers' cache over one slot, for one pass of `count` rows: `place` indexes the slot's rows, theirs last."""

    def __init__(self, storage: LayerStorage, place: slice | Tensor, count: int) -> None:
        stop = len(place) if isinstance(place, Tensor) else place.stop - place.start
        fresh = place[-count:] if isinstance(place, Tensor) else slice(place.stop - count, place.stop)
        self._before = stop - count
        super().__init__(
            layers=[
                DummyLayer() if layer is None else _Layer(layer, place, fresh, self._before) for layer in storage.layers
            ]
        )

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self._before

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._before + query_length, 0

    def get_seq_length(self, layer_idx: int | None = None) -> int:
        """Rows before the pass. Raises InvalidArgument to an attention module that asks for its own layer: it would take
        the rows' order for their positions (Llama 4's temperature by position does).
        """
        if layer_idx is not None:
            raise InvalidArgument(
                "config.model_type",
                "its attention derives positions from the number of cached rows, not from position_ids",
            )
        return self._before


class _Layer(CacheLayerMixin):
    """One layer of it. Nothing slides: rows behind a window stay, the mask hides them."""

    is_sliding = False
    supports_early_init = False

    def __init__(
        self, cached: tuple[Tensor, Tensor], place: slice | Tensor, fresh: slice | Tensor, before: int
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._cached, self._place, self._fresh, self._before = cached, place, fresh, before
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """The pages exist."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Writes [1, heads, N, width] of the pass's rows; all of the slot's rows, [1, heads, K, width]."""
        keys, values = self._cached
        keys[:, self._fresh] = key_states[0]
        values[:, self._fresh] = value_states[0]
        self.keys, self.values = keys[None, :, self._place], values[None, :, self._place]
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._before + query_length, 0

    def get_seq_length(self) -> int:
        return self._before

    def get_max_length(self) -> int:
        return -1
