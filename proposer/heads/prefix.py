"""One decoder layer over the target's final rows, run once a round: Hydra++'s prefix attention and Clover's augmenting block
(arXiv 2402.05109, section 4.3; arXiv 2405.00263, section 3.4).

Row i is a function of the target's rows up to i, so its KV is kept over rounds and cut to what is still published.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from models.backend import Backend, RowBlock
from models.config import DecoderConfig
from models.load import backend_of
from models.weights import DecoderWeights, LayerWeights
from proposer.heads.head import HiddenStates, Int64Array, common_length
from proposer.heads.layers import DecoderLayer, rms

FINAL = "final_norm"
_PREFILL_ROWS = 256


class PrefixNetwork(nn.Module):
    """The trainable layer and its output norm, which is added to the row: at zero gain the layer changes nothing."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.layer = DecoderLayer(config)
        self.norm = nn.Parameter(torch.full((config.hidden_size,), 0.1))

    def forward(self, rows: Tensor, first: int) -> Tensor:
        """Augmented rows `first` .. N - 1 of one segment's rows [N, H]: float32 [N - first, H]."""
        positions = torch.arange(len(rows))
        layer = self.layer
        base = layer.keys(rows, positions)
        x = rows[first:]
        mixed = layer.attend(layer.queries(x, positions[first:]), base, first + 1)
        return x + self.norm * rms(layer.finish(x, mixed), layer.config.rms_eps)


class PrefixRows:
    """The trained layer as a backend; opens sessions."""

    def __init__(self, network: PrefixNetwork, *, digest: str, kv_budget_tokens: int = 16384) -> None:
        config = replace(network.layer.config, vocab_size=1, num_layers=1, windows=(None,))
        unused = torch.zeros(1, config.hidden_size)
        self._backend = backend_of(
            config,
            DecoderWeights(unused, (backend_layer(network.layer, torch.float32),), network.norm.detach(), unused),
            checkpoint_digest=digest,
            kv_budget_tokens=kv_budget_tokens,
        )

    def open(self, capacity: int) -> PrefixSession:
        return PrefixSession(self._backend, capacity)


class PrefixSession:
    """Rows of one session."""

    def __init__(self, backend: Backend, capacity: int) -> None:
        self._backend = backend
        self._slot = backend.allocate(capacity)
        self._tokens: Int64Array = np.zeros(0, np.int64)
        # The row that the slot's first is.
        self._base = 0

    def follow(self, tokens: Int64Array, states: HiddenStates) -> Tensor:
        """The augmented row of the last of `tokens` int64 [N], those the target has rows of: float32 [1, H]."""
        total = len(tokens)
        base = states.base
        kept = max(base, min(common_length(self._tokens, tokens), total - 1)) if base == self._base else base
        rows = states.rows(kept, total)[FINAL]
        self._base = base
        self._backend.truncate(self._slot, kept - base)
        self._tokens = tokens[:kept].copy()
        out = rows[-1:]
        for start in range(kept, total, _PREFILL_ROWS):
            part = rows[start - kept : start - kept + _PREFILL_ROWS]
            index = np.arange(len(part), dtype=np.int64)
            # A backend counts places from its slot's start; rotations are relative, so that attention sees no difference.
            places = start - base + index
            block = RowBlock(self._slot, np.zeros(len(part), np.int64), places, index - 1, index[:0], part)
            out = self._backend.forward([block], taps=(FINAL,)).hidden[FINAL][0][-1:]
            self._backend.commit(self._slot, index.tolist())
            self._tokens = tokens[: start + len(part)].copy()
        return rows[-1:] + out

    def release(self) -> None:
        self._backend.release(self._slot)


def backend_layer(layer: DecoderLayer, dtype: torch.dtype) -> LayerWeights:
    """The trained layer as a backend reads it, everything in one dtype."""
    return LayerWeights(
        attention_norm=layer.attention_norm.detach().to(dtype),
        qkv=layer.qkv.detach().to(dtype),
        qkv_bias=None,
        q_norm=None,
        k_norm=None,
        out=layer.out.detach().to(dtype),
        out_bias=None,
        mlp_norm=layer.mlp_norm.detach().to(dtype),
        gate_up=layer.gate_up.detach().to(dtype),
        down=layer.down.detach().to(dtype),
    )
