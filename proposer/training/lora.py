"""The target with a low-rank adapter, in plain differentiable torch: Medusa-2's backbone (arXiv 2401.10774, section 3.2;
LoRA, arXiv 2106.09685).

Switched off, the adapter leaves the frozen target as it is, so one resident model is teacher (off) and student (on). The
adapter is not quantised and neither is the target, for a quantised teacher would be another model (M7.2 section 0x05C).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from contracts.errors import InvalidArgument
from models.config import DecoderConfig
from models.weights import DecoderWeights, LayerWeights
from proposer.heads.adapter import MATRICES
from proposer.heads.layers import rms
from proposer.heads.package import ADAPTER


class LoraBackbone(nn.Module):
    """Frozen `weights` (float32) plus B A for qkv and out of every layer; B starts at zero, so it starts as the target.

    Parameters: a.K.NAME [rank, in], b.K.NAME [out, rank] of layer K.
    """

    def __init__(self, config: DecoderConfig, weights: DecoderWeights, rank: int) -> None:
        super().__init__()
        if config.qkv_bias or config.o_bias or config.qk_norm or any(config.windows):
            raise InvalidArgument(
                "medusa2", f"adapters for {config.family} with biases, head norms or windows are not made"
            )
        self.config, self.rank = config, rank
        self.weights = weights.map(lambda tensor: tensor.float())
        self.a, self.b = nn.ParameterDict(), nn.ParameterDict()
        for index, layer in enumerate(self.weights.layers):
            for name in MATRICES:
                rows, columns = getattr(layer, name).shape
                self.a[_key(index, name)] = nn.Parameter(torch.randn(rank, columns) / columns**0.5)
                self.b[_key(index, name)] = nn.Parameter(torch.zeros(rows, rank))
        cos, sin = config.rope.table(config.context_length)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    cos: Tensor
    sin: Tensor

    def forward(self, tokens: Tensor, bounds: Sequence[tuple[int, int]], *, adapted: bool) -> Tensor:
        """Final-norm rows float32 [T, H] of packed tokens int64 [T]; each segment sees itself only, causally."""
        weights, eps = self.weights, self.config.rms_eps
        x = weights.embedding[tokens]
        positions = torch.cat([torch.arange(stop - start) for start, stop in bounds])
        for index, layer in enumerate(weights.layers):
            qkv = self._product(index, "qkv", layer, layer.attention_norm * rms(x, eps), adapted)
            mixed = torch.cat([self._attend(qkv[start:stop], positions[start:stop]) for start, stop in bounds])
            x = x + self._product(index, "out", layer, mixed, adapted)
            gate, up = functional.linear(layer.mlp_norm * rms(x, eps), layer.gate_up).chunk(2, dim=-1)
            x = x + functional.linear(functional.silu(gate) * up, layer.down)
        return weights.final_norm * rms(x, eps)

    def logits(self, rows: Tensor) -> Tensor:
        """float32 [N, V] of the target's own, frozen vocabulary rows."""
        return functional.linear(rows, self.weights.head)

    def adapter(self) -> dict[str, Tensor]:
        """What a package carries beside the heads: adapter.a.K.NAME and adapter.b.K.NAME."""
        return {
            f"{ADAPTER}{side}.{key.replace('_', '.', 1)}": value
            for side, group in (("a", self.a), ("b", self.b))
            for key, value in group.items()
        }

    def _product(self, index: int, name: str, layer: LayerWeights, x: Tensor, adapted: bool) -> Tensor:
        out = functional.linear(x, getattr(layer, name))
        if not adapted:
            return out
        key = _key(index, name)
        return out + functional.linear(functional.linear(x, self.a[key]), self.b[key])

    def _attend(self, qkv: Tensor, positions: Tensor) -> Tensor:
        config, count = self.config, len(qkv)
        heads, kv_heads, width = config.num_heads, config.num_kv_heads, config.head_dim
        query, key, value = qkv.view(count, heads + 2 * kv_heads, width).split([heads, kv_heads, kv_heads], dim=1)
        cos, sin = self.cos[positions, None], self.sin[positions, None]

        def rotate(part: Tensor) -> Tensor:
            first, second = part.chunk(2, dim=-1)
            return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

        grouped = rotate(query).view(count, kv_heads, config.group, width)
        scores = torch.einsum("nkgd,mkd->kgnm", grouped, rotate(key)) * width**-0.5
        future = torch.ones(count, count, dtype=torch.bool).triu(1)
        shares = torch.softmax(scores.masked_fill(future, float("-inf")), dim=-1)
        return torch.einsum("kgnm,mkd->nkgd", shares, value).reshape(count, heads * width)


def merged(weights: DecoderWeights, adapter: Mapping[str, Tensor]) -> DecoderWeights:
    """The changed backbone that a Medusa-2 package's heads were trained with, in the weights' dtype.

    Raises InvalidArgument for an adapter that does not cover these layers exactly.
    """
    expected = {
        f"{ADAPTER}{side}.{index}.{name}" for side in "ab" for index in range(len(weights.layers)) for name in MATRICES
    }
    if set(adapter) != expected:
        wrong = sorted(set(adapter) ^ expected)
        raise InvalidArgument("head.adapter", f"does not cover the target's layers: {', '.join(wrong[:3])}")

    def changed(layer: LayerWeights, index: int) -> LayerWeights:
        new = {}
        for name in MATRICES:
            base = getattr(layer, name)
            delta = adapter[f"{ADAPTER}b.{index}.{name}"] @ adapter[f"{ADAPTER}a.{index}.{name}"]
            if delta.shape != base.shape:
                raise InvalidArgument(
                    "head.adapter", f"layer {index} {name}: {tuple(delta.shape)}, not {tuple(base.shape)}"
                )
            new[name] = (base.float() + delta).to(base.dtype)
        return replace(layer, **new)

    layers = tuple(changed(layer, index) for index, layer in enumerate(weights.layers))
    return DecoderWeights(weights.embedding, layers, weights.final_norm, weights.head)


def _key(index: int, name: str) -> str:
    return f"{index}_{name}"
