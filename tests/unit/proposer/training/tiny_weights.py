"""Random weights of a whole tiny target, for what is trained together with it or made of its layers."""

from __future__ import annotations

import torch

from models.weights import DecoderWeights, LayerWeights
from tests.unit.proposer.heads.tiny_heads import CONFIG, HIDDEN, frozen


def target_weights() -> DecoderWeights:
    generator = torch.Generator().manual_seed(8)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) / shape[-1] ** 0.5

    def layer() -> LayerWeights:
        ones = torch.ones(HIDDEN)
        inner = CONFIG.intermediate_size
        qkv = random((CONFIG.num_heads + 2 * CONFIG.num_kv_heads) * CONFIG.head_dim, HIDDEN)
        return LayerWeights(
            ones,
            qkv,
            None,
            None,
            None,
            random(HIDDEN, HIDDEN),
            None,
            ones,
            random(2 * inner, HIDDEN),
            random(HIDDEN, inner),
        )

    embedding = frozen().embedding
    return DecoderWeights(embedding, tuple(layer() for _ in range(CONFIG.num_layers)), torch.ones(HIDDEN), embedding)
