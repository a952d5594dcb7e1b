"""A model's weights as a pass reads them: matrices in panels, vectors padded, embeddings for numpy to look up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from models.config import DecoderConfig
from models.cpu.embedding import EmbeddingArrays, embedding_arrays
from models.cpu.formats import PANEL
from models.cpu.packing import Packed, pack, panels, vocabulary_kind
from models.weights import DecoderWeights

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class PassWeights:
    """float32 rows beside the matrices. norms: [2 layers + 1, padded hidden], a layer's two in turn, the final one last.
    qkv_bias: [layers, qkv]. out_bias: [layers, padded hidden]. head_norms: [2 layers, head_dim], q's and k's in turn. None
    where the model has none.
    """

    packed: Packed
    norms: Floats
    qkv_bias: Floats | None
    out_bias: Floats | None
    head_norms: Floats | None


@dataclass(frozen=True)
class CpuWeights:
    """A whole model: what its passes read, and its embeddings."""

    passes: PassWeights
    embedding: EmbeddingArrays


def pass_weights(weights: DecoderWeights, config: DecoderConfig, kind: int) -> PassWeights:
    """kind: the format of the layers' panels (models/cpu/formats.py). Raises what packing raises."""
    layers = weights.layers
    hidden_stride = panels(config.hidden_size) * PANEL
    qkv = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    norms = [norm for layer in layers for norm in (layer.attention_norm, layer.mlp_norm)]
    return PassWeights(
        packed=pack(weights, config, kind),
        norms=_rows([*norms, weights.final_norm], hidden_stride),
        qkv_bias=_present_rows([layer.qkv_bias for layer in layers], qkv),
        out_bias=_present_rows([layer.out_bias for layer in layers], hidden_stride),
        head_norms=_present_rows([norm for layer in layers for norm in (layer.q_norm, layer.k_norm)], config.head_dim),
    )


def cpu_weights(weights: DecoderWeights, config: DecoderConfig, kind: int) -> CpuWeights:
    """As `pass_weights`, with the embeddings."""
    return CpuWeights(pass_weights(weights, config, kind), embedding_arrays(weights.embedding, vocabulary_kind(kind)))


def _present_rows(tensors: Sequence[Tensor | None], stride: int) -> Floats | None:
    present = [tensor for tensor in tensors if tensor is not None]
    return _rows(present, stride) if present else None


def _rows(tensors: Sequence[Tensor], stride: int) -> Floats:
    """Vectors as rows of one zero-padded array."""
    rows = np.zeros((len(tensors), stride), np.float32)
    for row, tensor in zip(rows, tensors, strict=True):
        row[: len(tensor)] = tensor.float().numpy()
    return rows
