"""The decoder in plain torch operators: the reference, and the implementation for devices without one of their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from models.backend import BackendInfo, Int64Array, PassResult, RowBlock
from models.config import DecoderConfig
from models.kv import Slot, SlotPool, page_count
from models.passes import FINAL_NORM_TAP, Span, ancestry, depths, plan, tap_layers
from models.pooled import PooledSlots
from models.weights import DecoderWeights, LayerWeights

_PAGE_ROWS = 16


class TorchStorage:
    """keys, values: [layers, kv_heads, rows of all pages, head_dim] in the weights' dtype, keys rotated."""

    def __init__(self, config: DecoderConfig, budget_tokens: int, like: Tensor) -> None:
        self.page_rows = _PAGE_ROWS
        rows = page_count(budget_tokens, _PAGE_ROWS) * _PAGE_ROWS
        shape = (config.num_layers, config.num_kv_heads, rows, config.head_dim)
        self.keys = like.new_empty(shape)
        self.values = like.new_empty(shape)
        self.row_bytes = 2 * self.keys.nbytes // rows

    def place(self, slot: Slot, stop: int) -> slice | Tensor:
        """Index of the slot's rows [0, stop): a slice where its pages follow each other, as those of a lone session do."""
        rows = slot.rows(0, stop)
        if rows[-1] - rows[0] == stop - 1 and (np.diff(slot.table[: page_count(stop, _PAGE_ROWS)]) == 1).all():
            return slice(int(rows[0]), int(rows[0]) + stop)
        return torch.from_numpy(rows).to(self.keys.device)

    def copy(self, sources: Int64Array, targets: Int64Array) -> None:
        to, source = (torch.from_numpy(rows).to(self.keys.device) for rows in (targets, sources))
        for cache in (self.keys, self.values):
            cache[:, :, to] = cache[:, :, source]

    def copy_start(self, source: int, target: int, count: int) -> None:
        source, target = source * _PAGE_ROWS, target * _PAGE_ROWS
        for cache in (self.keys, self.values):
            cache[:, :, target : target + count] = cache[:, :, source : source + count]

    def poison(self, rows: Int64Array) -> None:
        index = torch.from_numpy(rows).to(self.keys.device)
        for cache in (self.keys, self.values):
            cache[:, :, index] = float("nan")


class TorchDecoder(PooledSlots):
    """Backend over torch operators, on any device, in fp32 or bf16.

    Computes what Transformers' eager attention computes, in its order of operations. Invisible rows are left out of
    the product with the values, not weighted with zero, so stray NaN cannot leak. Makes no claim of row invariance.
    """

    def __init__(
        self,
        info: BackendInfo,
        config: DecoderConfig,
        weights: DecoderWeights,
        *,
        kv_budget_tokens: int,
        poison: bool = False,
    ) -> None:
        self.info = info
        self._config = config
        self._weights = weights
        self._storage = TorchStorage(config, kv_budget_tokens, weights.embedding)
        self._pool = SlotPool(kv_budget_tokens, self._storage, poison=poison)
        device = weights.embedding.device
        self._cos, self._sin = (part.to(device) for part in config.rope.table(config.context_length))

    @torch.inference_mode()
    def forward(self, blocks: Sequence[RowBlock], *, taps: Sequence[str] = ()) -> PassResult:
        tapped = tap_layers(taps, self._config.num_layers)
        spans = plan(self._pool, self.info, blocks)
        weights = self._weights
        device = weights.embedding.device
        tokens = torch.from_numpy(np.concatenate([block.token_ids for block in blocks])).to(device)
        positions = torch.from_numpy(np.concatenate([block.positions for block in blocks])).to(device)
        rotation = (self._cos[positions, None], self._sin[positions, None])
        masks = [self._masks(span, device) for span in spans]
        places = [self._storage.place(span.slot, span.slot.length + len(span.parents)) for span in spans]
        hidden = {}
        x = weights.embedding[tokens]
        for span in spans:
            if span.block.inputs is not None:
                x[span.start : span.stop] = span.block.inputs.to(x)
        for index, layer in enumerate(weights.layers):
            x = x + self._attend(index, layer, self._norm(x, layer.attention_norm), rotation, spans, masks, places)
            gate, up = functional.linear(self._norm(x, layer.mlp_norm), layer.gate_up).chunk(2, dim=-1)
            x = x + functional.linear(functional.silu(gate) * up, layer.down)
            for tap, tap_index in tapped.items():
                if tap_index == index:
                    hidden[tap] = x
        final = self._norm(x, weights.final_norm)
        if FINAL_NORM_TAP in taps:
            hidden[FINAL_NORM_TAP] = final
        logits = [
            functional.linear(final[span.start + torch.from_numpy(span.wanted).to(device)], weights.head).float()
            for span in spans
        ]
        for span in spans:
            self._pool.stage(span.slot, span.block)
        split = {tap: [rows[span.start : span.stop].float() for span in spans] for tap, rows in hidden.items()}
        return PassResult(logits, split)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._config.rms_eps)
        return weight * scaled.to(x.dtype)

    def _attend(
        self,
        index: int,
        layer: LayerWeights,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        spans: Sequence[Span],
        masks: Sequence[dict[int | None, Tensor]],
        places: Sequence[slice | Tensor],
    ) -> Tensor:
        config = self._config
        heads, kv_heads, width = config.num_heads, config.num_kv_heads, config.head_dim
        qkv = functional.linear(x, layer.qkv, layer.qkv_bias).view(len(x), heads + 2 * kv_heads, width)
        query, key, value = qkv.split([heads, kv_heads, kv_heads], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            query, key = self._norm(query, layer.q_norm), self._norm(key, layer.k_norm)
        query, key = _rotate(query, *rotation), _rotate(key, *rotation)
        out = torch.empty_like(query)
        for span, mask, place in zip(spans, masks, places, strict=True):
            rows = slice(span.start, span.stop)
            seen = mask[config.windows[index]]
            out[rows] = self._attend_span(index, place, seen, query[rows], key[rows], value[rows])
        return functional.linear(out.reshape(len(x), heads * width), layer.out, layer.out_bias)

    def _attend_span(
        self, index: int, place: slice | Tensor, mask: Tensor, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        storage, config = self._storage, self._config
        fresh = place[-len(query) :] if isinstance(place, Tensor) else slice(place.stop - len(query), place.stop)
        storage.keys[index, :, fresh] = key.transpose(0, 1)
        storage.values[index, :, fresh] = value.transpose(0, 1)
        keys, values = storage.keys[index, :, place], storage.values[index, :, place]
        grouped = query.view(len(query), config.num_kv_heads, config.group, config.head_dim).permute(1, 2, 0, 3)
        scores = grouped @ keys[:, None].transpose(-1, -2) * config.head_dim**-0.5
        scores = scores.masked_fill(~mask, float("-inf"))
        shares = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
        mixed = shares @ values[:, None]
        return mixed.permute(2, 0, 1, 3).reshape(query.shape)

    def _masks(self, span: Span, device: torch.device) -> dict[int | None, Tensor]:
        """Per window size: bool [N, committed + staged], which rows each row of the block sees."""
        before, length = span.staged_before, span.slot.length
        committed = np.ones((span.stop - span.start, length), np.bool_)
        full = np.concatenate([committed, ancestry(span.parents)[before:]], axis=1)
        masks: dict[int | None, Tensor] = {}
        for window in set(self._config.windows):
            seen = full
            if window is not None:
                staged_positions = length + np.array(depths(span.parents.tolist()))
                key_positions = np.concatenate([np.arange(length), staged_positions])
                seen = full & (key_positions[None] > span.block.positions[:, None] - window)
            masks[window] = torch.from_numpy(seen).to(device)
        return masks


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate halves: x [rows, heads, head_dim], cos and sin float32 [rows, 1, head_dim / 2]."""
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
