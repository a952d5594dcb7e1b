"""The pass itself: from a layout's inputs to logits and hidden rows, as a fixed sequence of launches without a wait.

Run as it stands it is the eager pass; recorded once it is a graph. It may therefore look at nothing but shapes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from models.config import DecoderConfig
from models.cuda.inputs import PassInputs
from models.cuda.kernels import PassKernels
from models.cuda.storage import DeviceStorage
from models.weights import DecoderWeights


@dataclass(frozen=True)
class Outputs:
    """logits: float32 [wanted, vocab_size]. taps: per tapped layer float32 [rows, hidden]. normed: the same, or None."""

    logits: Tensor
    taps: tuple[Tensor, ...]
    normed: Tensor | None


class Forward:
    """Weights, cache, position tables and kernels of one model, all on one device and never moved."""

    def __init__(
        self, config: DecoderConfig, weights: DecoderWeights, storage: DeviceStorage, kernels: PassKernels
    ) -> None:
        self._config = config
        self._weights = weights
        self._storage = storage
        self._kernels = kernels
        device = weights.embedding.device
        self._cos, self._sin = (part.to(device).contiguous() for part in config.rope.table(config.context_length))

    def __call__(self, inputs: PassInputs) -> Outputs:
        config, weights, kernels, layout = self._config, self._weights, self._kernels, inputs.layout
        x = functional.embedding(inputs.tokens, weights.embedding)
        if layout.given:
            x = torch.where(inputs.given_rows[:, None] > 0, inputs.given.to(x.dtype), x)
        delta: Tensor | None = None
        outputs: list[Tensor] = []
        for index, layer in enumerate(weights.layers):
            x, normed = kernels.add_norm(x, delta, layer.attention_norm, config.rms_eps)
            if index - 1 in layout.taps:
                outputs.append(x.float())
            qkv = functional.linear(normed, layer.qkv, layer.qkv_bias)
            norms = None if layer.q_norm is None or layer.k_norm is None else (layer.q_norm, layer.k_norm)
            keys, values = self._storage.keys[index], self._storage.values[index]
            query = kernels.rotate_and_store(
                qkv, norms, config.rms_eps, self._cos, self._sin, inputs.positions, inputs.targets, keys, values
            )
            last = index == config.num_layers - 1
            if last and not (layout.wanted or layout.normed or index in layout.taps):
                # Nobody reads what lies behind the last layer's keys and values.
                return Outputs(x.new_empty((0, config.vocab_size), dtype=torch.float32), tuple(outputs), None)
            mixed = kernels.attend(query, keys, values, inputs.view, config.windows[index])
            x, normed = kernels.add_norm(
                x, functional.linear(mixed, layer.out, layer.out_bias), layer.mlp_norm, config.rms_eps
            )
            inner = kernels.gate(functional.linear(normed, layer.gate_up))
            delta = functional.linear(inner, layer.down)
        x, final = kernels.add_norm(x, delta, weights.final_norm, config.rms_eps)
        if config.num_layers - 1 in layout.taps:
            outputs.append(x.float())
        picked = final.index_select(0, inputs.wanted_rows)
        logits = functional.linear(picked, weights.head).float()
        return Outputs(logits, tuple(outputs), final.float() if layout.normed else None)
