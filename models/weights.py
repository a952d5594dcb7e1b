"""Strict reading of safetensors into one record per layer: every tensor wanted is there, in shape, and no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from contracts.errors import DataLoss, InvalidArgument
from models.checkpoint import weight_files
from models.config import DecoderConfig

# Old exports carry these tables; they follow from the configuration.
_DERIVED_SUFFIX = "rotary_emb.inv_freq"


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer. Matrices are [out, in]; q, k and v are stacked in that order, gate above up."""

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True)
class DecoderWeights:
    """The whole model. `head` is `embedding` itself (the same storage) where the configuration ties them."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    head: Tensor

    def map(self, change: Callable[[Tensor], Tensor]) -> DecoderWeights:
        """The same record with `change` applied to each tensor once; a tied head stays tied."""
        embedding = change(self.embedding)

        def optional(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else change(tensor)

        layers = tuple(
            LayerWeights(
                change(layer.attention_norm),
                change(layer.qkv),
                optional(layer.qkv_bias),
                optional(layer.q_norm),
                optional(layer.k_norm),
                change(layer.out),
                optional(layer.out_bias),
                change(layer.mlp_norm),
                change(layer.gate_up),
                change(layer.down),
            )
            for layer in self.layers
        )
        head = embedding if self.head is self.embedding else change(self.head)
        return DecoderWeights(embedding, layers, change(self.final_norm), head)


def read_weights(directory: Path, config: DecoderConfig, dtype: torch.dtype | None) -> DecoderWeights:
    """Read all tensors and round them to `dtype`; None leaves each as it is stored.

    Raises InvalidArgument naming the first tensors that are missing, left over or misshapen, and DataLoss when a file
    is cut short or is no safetensors file.
    """
    tensors = _Tensors(directory, dtype)
    hidden, width = config.hidden_size, config.num_heads * config.head_dim
    kv_width = config.num_kv_heads * config.head_dim

    def layer(index: int) -> LayerWeights:
        def take(name: str, *shape: int) -> Tensor:
            return tensors.take(f"model.layers.{index}.{name}", shape)

        qkv_parts = (("q", width), ("k", kv_width), ("v", kv_width))
        return LayerWeights(
            attention_norm=take("input_layernorm.weight", hidden),
            qkv=torch.cat([take(f"self_attn.{part}_proj.weight", rows, hidden) for part, rows in qkv_parts]),
            qkv_bias=torch.cat([take(f"self_attn.{part}_proj.bias", rows) for part, rows in qkv_parts])
            if config.qkv_bias
            else None,
            q_norm=take("self_attn.q_norm.weight", config.head_dim) if config.qk_norm else None,
            k_norm=take("self_attn.k_norm.weight", config.head_dim) if config.qk_norm else None,
            out=take("self_attn.o_proj.weight", hidden, width),
            out_bias=take("self_attn.o_proj.bias", hidden) if config.o_bias else None,
            mlp_norm=take("post_attention_layernorm.weight", hidden),
            gate_up=torch.cat(
                [take(f"mlp.{part}_proj.weight", config.intermediate_size, hidden) for part in ("gate", "up")]
            ),
            down=take("mlp.down_proj.weight", hidden, config.intermediate_size),
        )

    embedding = tensors.take("model.embed_tokens.weight", (config.vocab_size, hidden))
    layers = tuple(layer(index) for index in range(config.num_layers))
    final_norm = tensors.take("model.norm.weight", (hidden,))
    if config.tied_head:
        tensors.ignore("lm_head.weight")
        head = embedding
    else:
        head = tensors.take("lm_head.weight", (config.vocab_size, hidden))
    tensors.close()
    return DecoderWeights(embedding, layers, final_norm, head)


class _Tensors:
    """The tensors of all weight files by name, each taken at most once."""

    def __init__(self, directory: Path, dtype: torch.dtype | None) -> None:
        self._directory = directory
        self._dtype = dtype
        self._left: dict[str, Tensor] = dict(self._read(directory))

    @staticmethod
    def _read(directory: Path) -> Iterator[tuple[str, Tensor]]:
        for path in weight_files(directory):
            try:
                with safe_open(path, framework="pt") as file:
                    for name in file.keys():  # noqa: SIM118 - no mapping, has no iterator
                        if not name.endswith(_DERIVED_SUFFIX):
                            yield name, file.get_tensor(name)
            except SafetensorError as error:
                raise DataLoss("model", f"{path.name} cannot be read: {error}") from error

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self._left.pop(name, None)
        if tensor is None:
            raise InvalidArgument("model", f"{self._directory.name} lacks the tensor {name}")
        if tuple(tensor.shape) != shape:
            raise InvalidArgument("model", f"{name} has shape {tuple(tensor.shape)}, the configuration says {shape}")
        if not tensor.is_floating_point():
            raise InvalidArgument("model", f"{name} has dtype {tensor.dtype}: quantised checkpoints are not supported")
        return tensor.to(self._dtype).contiguous()

    def ignore(self, name: str) -> None:
        self._left.pop(name, None)

    def close(self) -> None:
        if self._left:
            names = sorted(self._left)
            shown = ", ".join(names[:5])
            raise InvalidArgument("model", f"{len(names)} tensors that no layer of the configuration uses: {shown}")
