"""A Medusa-2 package's adapter: which tensors it has for a target, so that reading it is as strict as reading a head."""

from __future__ import annotations

from collections.abc import Mapping

from models.config import DecoderConfig
from proposer.heads.package import ADAPTER

# The matrices of every layer that the adapter changes.
MATRICES = ("qkv", "out")


def adapter_shapes(config: DecoderConfig, rank: int) -> Mapping[str, tuple[int, ...]]:
    """adapter.a.K.NAME [rank, in] and adapter.b.K.NAME [out, rank] of layer K's matrices [out, in]."""
    attended = config.num_heads * config.head_dim
    matrices = {
        "qkv": (attended + 2 * config.num_kv_heads * config.head_dim, config.hidden_size),
        "out": (config.hidden_size, attended),
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for index in range(config.num_layers):
        for name in MATRICES:
            rows, columns = matrices[name]
            shapes[f"{ADAPTER}a.{index}.{name}"] = (rank, columns)
            shapes[f"{ADAPTER}b.{index}.{name}"] = (rows, rank)
    return shapes
