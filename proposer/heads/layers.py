"""The trainable pieces that families share: normalisation and one decoder layer, shaped as the target's own layers are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.config import DecoderConfig


def rms(x: Tensor, eps: float) -> Tensor:
    """x divided by its root mean square along the last axis."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


@dataclass(frozen=True)
class Keys:
    """Rotated keys and values of one segment's rows: float32 [N, kv_heads, head_dim] each."""

    keys: Tensor
    values: Tensor


class DecoderLayer(nn.Module):
    """One pre-norm decoder layer in the layout of `models.weights.LayerWeights`, without biases.

    Attention is left to the caller in parts (`queries_keys`, `attend`, `finish`), because training-time test attends to
    rows of several steps.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        hidden, width = config.hidden_size, config.num_heads * config.head_dim
        kv_width = config.num_kv_heads * config.head_dim
        self.config = config
        self.attention_norm = nn.Parameter(torch.ones(hidden))
        self.qkv = nn.Parameter(torch.empty(width + 2 * kv_width, hidden))
        self.out = nn.Parameter(torch.empty(hidden, width))
        self.mlp_norm = nn.Parameter(torch.ones(hidden))
        self.gate_up = nn.Parameter(torch.empty(2 * config.intermediate_size, hidden))
        self.down = nn.Parameter(torch.empty(hidden, config.intermediate_size))
        for matrix in (self.qkv, self.out, self.gate_up, self.down):
            nn.init.normal_(matrix, std=0.02)
        cos, sin = config.rope.table(config.context_length)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def keys(self, x: Tensor, positions: Tensor) -> Keys:
        """Of all rows x float32 [N, H] at positions int64 [N]."""
        config = self.config
        width = config.num_heads * config.head_dim
        both = functional.linear(self._norm(x, self.attention_norm), self.qkv[width:])
        keys, values = both.view(len(x), 2, config.num_kv_heads, config.head_dim).unbind(1)
        return Keys(self._rotate(keys, positions), values)

    def queries(self, x: Tensor, positions: Tensor) -> Tensor:
        """float32 [N, heads, head_dim], rotated."""
        config = self.config
        width = config.num_heads * config.head_dim
        rows = functional.linear(self._norm(x, self.attention_norm), self.qkv[:width])
        return self._rotate(rows.view(len(x), config.num_heads, config.head_dim), positions)

    def attend(self, queries: Tensor, base: Keys, visible: int, diagonals: Sequence[Keys] = ()) -> Tensor:
        """Row r of `queries` [N, heads, head_dim] sees rows [0, visible + r) of `base`, and row r of each of `diagonals`.

        Returns float32 [N, heads * head_dim].
        """
        config, count = self.config, len(queries)
        grouped = queries.view(count, config.num_kv_heads, config.group, config.head_dim)
        last = visible + count - 1
        keys, values = base.keys[:last], base.values[:last]
        scores = torch.einsum("nkgd,mkd->kgnm", grouped, keys) * config.head_dim**-0.5
        hidden = torch.ones(count, last, dtype=torch.bool).triu(visible)
        scores = scores.masked_fill(hidden, float("-inf"))
        own = [torch.einsum("nkgd,nkd->kgn", grouped, one.keys)[..., None] * config.head_dim**-0.5 for one in diagonals]
        shares = torch.softmax(torch.cat([scores, *own], dim=-1), dim=-1)
        mixed = torch.einsum("kgnm,mkd->nkgd", shares[..., :last], values)
        for index, one in enumerate(diagonals):
            share = shares[..., last + index].permute(2, 0, 1)[..., None]
            mixed = mixed + share * one.values[:, :, None]
        return mixed.reshape(count, config.num_heads * config.head_dim)

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The layer's output of rows x [N, H] with attention `mixed` [N, heads * head_dim]."""
        x = x + functional.linear(mixed, self.out)
        gate, up = functional.linear(self._norm(x, self.mlp_norm), self.gate_up).chunk(2, dim=-1)
        return x + functional.linear(functional.silu(gate) * up, self.down)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return weight * rms(x, self.config.rms_eps)

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        cos, sin = self.cos[positions, None], self.sin[positions, None]
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
