"""EAGLE and EAGLE-3 as their authors publish them, for imported checkpoints: the same rows as eagle.py, another function.

    eagle-published    x = fc [embedding; feature]; one decoder layer without input norm; law = target's rows x
                       (SafeAILab/EAGLE, cnets1.py; arXiv 2401.15077, section 3.1)
    eagle3-published   feature = fc of three layers' rows, or the layer's own last output; attention reads
                       [norm(embedding); norm(feature)] at twice the width; the residual is the feature, before its norm or
                       behind it; law = own rows norm(x) (cnets.py; arXiv 2503.01840, section 3)

Fused row i stands at position i. What eagle.py drafts by is cheaper to train and to run, but no renaming leads to it: its
inputs are divided by their root mean square. So these run in torch, in float32, without the compiled growth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from contracts.errors import InvalidArgument, ResourceExhausted
from models.config import DecoderConfig
from proposer.heads.head import HiddenStates, Int64Array, common_length
from proposer.heads.layers import rms
from proposer.heads.vocabulary import DraftVocabulary

FAMILIES = ("eagle-published", "eagle3-published")
FINAL = "final_norm"
# Fused rows of one pass over a prefix: bounds the pass's own memory.
_PREFILL_ROWS = 128


@dataclass(frozen=True)
class PublishedShape:
    """config: of the draft layer. taps: rows fused, of `target_hidden` each. joins: EAGLE's fc over [embedding; feature];
    otherwise EAGLE-3. Biases as the checkpoint has them. own_embedding: rows of its own instead of the target's.
    """

    config: DecoderConfig
    taps: tuple[str, ...]
    target_hidden: int
    joins: bool
    fc_bias: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    norm_before_residual: bool = False
    own_embedding: bool = False


class PublishedEagle(nn.Module):
    """Parameters: fc, fc_bias, embed_norm, hidden_norm (EAGLE-3), qkv, qkv_bias, out, out_bias, mlp_norm, gate_up, down,
    norm and projection [V', H] (EAGLE-3), embedding [V, H] where own. Absent ones are None.
    """

    shared_embedding: Tensor
    head: Tensor

    def __init__(self, shape: PublishedShape, embedding: Tensor, head: Tensor) -> None:
        """embedding [V, H_target], head [V', H_target]: the target's, used where the checkpoint has none."""
        super().__init__()
        config, hidden = shape.config, shape.config.hidden_size
        if not shape.own_embedding and hidden != embedding.shape[1]:
            raise InvalidArgument("head.decoder.hidden_size", f"{hidden} beside an embedding of {embedding.shape[1]}")
        self.shape = shape
        width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

        def tensor(*sizes: int, when: bool = True) -> nn.Parameter | None:
            return nn.Parameter(torch.zeros(*sizes)) if when else None

        self.fc = nn.Parameter(
            torch.zeros(hidden, 2 * hidden if shape.joins else len(shape.taps) * shape.target_hidden)
        )
        self.fc_bias = tensor(hidden, when=shape.fc_bias)
        self.embed_norm, self.hidden_norm, self.norm = (tensor(hidden, when=not shape.joins) for _ in range(3))
        self.qkv = nn.Parameter(torch.zeros(width + 2 * kv_width, hidden if shape.joins else 2 * hidden))
        self.qkv_bias = tensor(width + 2 * kv_width, when=shape.qkv_bias)
        self.out = nn.Parameter(torch.zeros(hidden, width))
        self.out_bias = tensor(hidden, when=shape.out_bias)
        self.mlp_norm = nn.Parameter(torch.zeros(hidden))
        self.gate_up = nn.Parameter(torch.zeros(2 * config.intermediate_size, hidden))
        self.down = nn.Parameter(torch.zeros(hidden, config.intermediate_size))
        self.projection = tensor(len(head), hidden, when=not shape.joins)
        self.embedding = tensor(len(embedding), hidden, when=shape.own_embedding)
        self.register_buffer("shared_embedding", embedding, persistent=False)
        self.register_buffer("head", head, persistent=False)

    def real(self, hidden: Mapping[str, Tensor]) -> Tensor:
        """Features [N, H] of the target's rows; drafted features are the layer's outputs as they are."""
        if self.shape.joins:
            return hidden[FINAL]
        return functional.linear(torch.cat([hidden[tap] for tap in self.shape.taps], dim=-1), self.fc, self.fc_bias)

    def inputs(self, features: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """(residual [N, H], what attention reads [N, H or 2 H]) of features and the tokens that follow, int64 [N]."""
        rows = self.shared_embedding if self.embedding is None else self.embedding
        embedded = rows[tokens].float()
        if self.shape.joins:
            x = functional.linear(torch.cat([embedded, features], dim=-1), self.fc, self.fc_bias)
            return x, x
        hidden = self._norm(features, self.hidden_norm)
        residual = hidden if self.shape.norm_before_residual else features
        return residual, torch.cat([self._norm(embedded, self.embed_norm), hidden], dim=-1)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [N, heads, D], keys and values [N, kv_heads, D] of what attention reads; not rotated."""
        config = self.shape.config
        rows = functional.linear(x, self.qkv, self.qkv_bias).view(len(x), -1, config.head_dim)
        queries, keys, values = rows.split([config.num_heads, config.num_kv_heads, config.num_kv_heads], dim=1)
        return queries, keys, values

    def finish(self, residual: Tensor, mixed: Tensor) -> Tensor:
        """The layer's outputs [N, H], which are the next features."""
        x = residual + functional.linear(mixed, self.out, self.out_bias)
        gate, up = functional.linear(self._norm(x, self.mlp_norm), self.gate_up).chunk(2, dim=-1)
        return x + functional.linear(functional.silu(gate) * up, self.down)

    def logits(self, outputs: Tensor) -> Tensor:
        """float32 [N, V'] over the draft vocabulary."""
        if self.projection is None:
            return functional.linear(outputs, self.head)
        return functional.linear(self._norm(outputs, self.norm), self.projection)

    def _norm(self, x: Tensor, weight: Tensor | None) -> Tensor:
        assert weight is not None
        return weight * rms(x, self.shape.config.rms_eps)


class PublishedEagleHead:
    """Implements DraftHead. kv_budget_tokens: rows that all sessions share."""

    max_depth = None

    def __init__(self, network: PublishedEagle, vocabulary: DraftVocabulary, *, kv_budget_tokens: int = 16384) -> None:
        self.network = network.eval().requires_grad_(False)
        self.vocabulary = vocabulary
        self._left = kv_budget_tokens

    @property
    def taps(self) -> tuple[str, ...]:
        return self.network.shape.taps

    def open(self, capacity: int) -> PublishedEagleSession:
        if capacity > self._left:
            raise ResourceExhausted("head.kv", f"{capacity} rows asked for, {self._left} left")
        self._left -= capacity
        return PublishedEagleSession(self.network, capacity, self._give_back)

    def _give_back(self, capacity: int) -> None:
        self._left += capacity


class PublishedEagleSession:
    """Implements HeadSession. Rows [0, kept) are real fused rows; staged ones stand behind them until the round ends."""

    def __init__(self, network: PublishedEagle, capacity: int, give_back: Callable[[int], None]) -> None:
        config = network.shape.config
        self._network, self._capacity, self._give_back = network, capacity, give_back
        self._keys = torch.zeros(capacity, config.num_kv_heads, config.head_dim)
        self._values = torch.zeros_like(self._keys)
        self._cos, self._sin = config.rope.table(capacity)
        # Token i + 1 of fused row i, behind token 0.
        self._tokens: Int64Array = np.zeros(0, np.int64)
        # The first fused row: those before it are never run, and nothing sees their places.
        self._base = 0
        # Row 0 is the anchor's, row s + 1 that of staged row s.
        self._outputs = torch.zeros(0, config.hidden_size)
        self._ancestors = torch.zeros(0, 0, dtype=torch.bool)

    @torch.inference_mode()
    def follow(self, prefix: Int64Array, states: HiddenStates) -> Tensor:
        if len(prefix) < 2:
            raise InvalidArgument("prefix", "needs two tokens: the first has no feature before it")
        total = len(prefix) - 1
        if total > self._capacity:
            raise ResourceExhausted("head.kv", f"the session has {self._capacity} rows")
        base = states.base
        common = common_length(self._tokens, prefix) - 1 if base == self._base else base
        kept = min(max(common, base), total - 1)
        features = self._network.real(states.rows(kept, total))
        self._base = base
        for start in range(kept, total, _PREFILL_ROWS):
            rows = torch.arange(start, min(start + _PREFILL_ROWS, total))
            tokens = torch.from_numpy(prefix[start + 1 : start + 1 + len(rows)].astype(np.int64))
            part = features[start - kept : start - kept + len(rows)]
            places = torch.arange(int(rows[-1]) + 1)
            visible = (places >= base) & (places <= rows[:, None])
            self._outputs = self._run(part, tokens, rows, rows, visible)[-1:]
        self._tokens, self._ancestors = prefix.copy(), torch.zeros(0, 0, dtype=torch.bool)
        return self._network.logits(self._outputs)[0]

    @torch.inference_mode()
    def stage(self, token_ids: Sequence[int], parents: Sequence[int], depths: Sequence[int]) -> Tensor:
        base, before, fresh = len(self._tokens) - 1, len(self._ancestors), len(token_ids)
        if base + before + fresh > self._capacity:
            raise ResourceExhausted("head.kv", f"the session has {self._capacity} rows")
        ancestors = torch.zeros(before + fresh, before + fresh, dtype=torch.bool)
        ancestors[:before, :before] = self._ancestors
        for row, parent in enumerate(parents, start=before):
            if parent >= 0:
                ancestors[row] = ancestors[parent]
            ancestors[row, row] = True
        real = (torch.arange(base) >= self._base).expand(fresh, base)
        visible = torch.cat([real, ancestors[before:]], dim=1)
        features = self._outputs[torch.tensor(parents) + 1]
        rows = torch.arange(base + before, base + before + fresh)
        outputs = self._run(features, torch.tensor(token_ids), rows, base - 1 + torch.tensor(depths), visible)
        self._ancestors, self._outputs = ancestors, torch.cat([self._outputs, outputs])
        return self._network.logits(outputs)

    def settle(self) -> None:
        self._outputs, self._ancestors = self._outputs[:1], torch.zeros(0, 0, dtype=torch.bool)

    def release(self) -> None:
        self._give_back(self._capacity)

    def _run(self, features: Tensor, tokens: Tensor, rows: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """Outputs [N, H] of fused rows kept at `rows` int64 [N], which see rows where `visible` bool [N, M] says so."""
        network, config = self._network, self._network.shape.config
        residual, x = network.inputs(features, tokens)
        queries, keys, values = network.split(x)
        cos, sin = self._cos[positions, None], self._sin[positions, None]
        self._keys[rows], self._values[rows] = _rotated(keys, cos, sin), values
        seen = visible.shape[1]
        spread = [
            part[:seen].repeat_interleave(config.group, dim=1).transpose(0, 1) for part in (self._keys, self._values)
        ]
        mixed = functional.scaled_dot_product_attention(
            _rotated(queries, cos, sin).transpose(0, 1), spread[0], spread[1], attn_mask=visible
        )
        return network.finish(residual, mixed.transpose(0, 1).reshape(len(rows), -1))


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
