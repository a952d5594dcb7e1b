"""The published forwards, written down from their definitions: whole sequences, no cache, published names.

Tensors are those of the published file. Row i holds the feature of token i and token i + 1, as in the papers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import silu, softmax

from tests.helpers.published_heads import HEAD_DIM, HEADS, KV_HEADS, LAYER

Weights = dict[str, Tensor]


def medusa_logits(weights: Weights, row: Tensor, head: int, layers: int) -> Tensor:
    """Medusa: x <- x + SiLU(W x + b), L times; then the head's own vocabulary rows."""
    x = row
    for j in range(layers):
        w, b = weights[f"{head}.{j}.linear.weight"].float(), weights[f"{head}.{j}.linear.bias"].float()
        x = x + silu(w @ x + b)
    return weights[f"{head}.{layers}.weight"].float() @ x


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x / torch.sqrt((x**2).mean(-1, keepdim=True) + LAYER["rms_norm_eps"])


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """x [N, heads, D]: pairs (d, d + D/2) turned by position / theta^(2d/D)."""
    half = HEAD_DIM // 2
    angle = positions[:, None] / LAYER["rope_theta"] ** (2 * torch.arange(half) / HEAD_DIM)
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)[:, None]
    return torch.cat([turned.real, turned.imag], dim=-1)


def attention(weights: Weights, name: str, x: Tensor) -> Tensor:
    """Causal attention of rows x at positions 0 .. N - 1, head by head."""
    count = len(x)

    def project(part: str, heads: int) -> Tensor:
        rows = x @ weights[f"{name}.self_attn.{part}_proj.weight"].T
        bias = weights.get(f"{name}.self_attn.{part}_proj.bias")
        return (rows if bias is None else rows + bias).view(count, heads, HEAD_DIM)

    positions = torch.arange(count).float()
    queries, keys = rotate(project("q", HEADS), positions), rotate(project("k", KV_HEADS), positions)
    values, out = project("v", KV_HEADS), []
    future = torch.ones(count, count).triu(1).bool()
    for head in range(HEADS):
        shared = head // (HEADS // KV_HEADS)
        scores = queries[:, head] @ keys[:, shared].T / math.sqrt(HEAD_DIM)
        out.append(softmax(scores.masked_fill(future, -math.inf), dim=-1) @ values[:, shared])
    return torch.cat(out, dim=-1) @ weights[f"{name}.self_attn.o_proj.weight"].T


def mlp(weights: Weights, name: str, x: Tensor) -> Tensor:
    gate, up, down = (weights[f"{name}.mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
    return (silu(x @ gate.T) * (x @ up.T)) @ down.T


def layer(weights: Weights, name: str, residual: Tensor, x: Tensor) -> Tensor:
    x = residual + attention(weights, name, x)
    return x + mlp(weights, name, norm(x, weights[f"{name}.post_attention_layernorm.weight"]))


def eagle_outputs(weights: Weights, embedding: Tensor, features: Tensor, tokens: Tensor) -> Tensor:
    """EAGLE-1: fc over [embedding, feature], then a layer that norms nothing before its attention."""
    fc, name = ("fc", "layers.0") if "fc.weight" in weights else ("fusion_fc", "transformer")
    x = torch.cat([embedding[tokens], features], dim=-1) @ weights[f"{fc}.weight"].T
    x = x + weights[f"{fc}.bias"] if f"{fc}.bias" in weights else x
    return layer(weights, name, x, x)


def eagle3_outputs(
    weights: Weights, embedding: Tensor, features: Tensor, tokens: Tensor, *, norm_before_residual: bool = False
) -> Tensor:
    """EAGLE-3: attention over both normed halves side by side; the residual is the feature."""
    name = "midlayer" if "midlayer.hidden_norm.weight" in weights else "layers.0"
    embedded = norm(embedding[tokens], weights[f"{name}.input_layernorm.weight"])
    hidden = norm(features, weights[f"{name}.hidden_norm.weight"])
    return layer(weights, name, hidden if norm_before_residual else features, torch.cat([embedded, hidden], dim=-1))
