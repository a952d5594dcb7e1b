"""EAGLE and EAGLE-3: one decoder layer that continues the target's features (arXiv 2401.15077, 2503.01840).

Fused row i joins the target's feature after token i with the embedding of token i + 1 and predicts the feature after token
i + 1, from which the target's own, frozen vocabulary rows read the law of token i + 2. Drafting on, the predicted feature
takes the real one's place.

    eagle    feature: the final norm's output (what the vocabulary product reads); trained with feature and token losses
    eagle3   feature: several layers' outputs, fused by one matrix; no feature loss; later depths read the head's own output,
             and training runs the same steps (training-time test)

Where we differ: features and embeddings are divided by their root mean square and each goes through a matrix of its own
(fc of the paper, cut in two); eagle3 has one matrix for the target's layers and another for its own output, and its layer
attends over fused rows as EAGLE's does, rather than over both halves at twice the width. Both start from the least-squares
map (`training/warm_start.py`), which is most of what a small budget would have to learn, and may be trained with several
steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.config import DecoderConfig
from proposer.heads.layers import DecoderLayer, Keys, rms

FINAL = "final_norm"


@dataclass(frozen=True)
class EagleShape:
    """taps: the target's hidden rows the head reads; one ("final_norm") for eagle, several layers for eagle3."""

    taps: tuple[str, ...]
    config: DecoderConfig

    @property
    def fuses(self) -> bool:
        return self.taps != (FINAL,)


class EagleNetwork(nn.Module):
    """The trainable part. `embedding` [V, H] and `head` [V', H] are the target's, frozen and not saved.

    Parameters: first [H, taps * H] (eagle3 only), again [H, H], token [H, H], the layer, norm [H].
    """

    embedding: Tensor
    head: Tensor

    def __init__(self, shape: EagleShape, embedding: Tensor, head: Tensor) -> None:
        super().__init__()
        hidden = shape.config.hidden_size
        self.shape = shape
        self.first = nn.Parameter(torch.zeros(hidden, len(shape.taps) * hidden)) if shape.fuses else None
        self.again = nn.Parameter(torch.zeros(hidden, hidden))
        self.token = nn.Parameter(torch.zeros(hidden, hidden))
        self.layer = DecoderLayer(shape.config)
        self.norm = nn.Parameter(torch.ones(hidden))
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("head", head, persistent=False)

    def real(self, hidden: Mapping[str, Tensor]) -> Tensor:
        """The feature half of fused rows from the target's rows, [N, H]."""
        if self.first is None:
            return self.drafted(hidden[FINAL])
        eps = self.shape.config.rms_eps
        return functional.linear(torch.cat([rms(hidden[tap], eps) for tap in self.shape.taps], dim=-1), self.first)

    def drafted(self, features: Tensor) -> Tensor:
        """The feature half of fused rows from features the head predicted, [N, H]."""
        return functional.linear(rms(features, self.shape.config.rms_eps), self.again)

    def fused(self, half: Tensor, tokens: Tensor) -> Tensor:
        """Fused rows [N, H] of their feature halves and the tokens that follow, int64 [N]."""
        return half + functional.linear(rms(self.embedding[tokens].float(), self.shape.config.rms_eps), self.token)

    def outputs(self, x: Tensor) -> Tensor:
        """Predicted features [N, H] of the layer's outputs."""
        return self.norm * rms(x, self.shape.config.rms_eps)

    def logits(self, features: Tensor) -> Tensor:
        """float32 [N, V'] over the draft vocabulary."""
        return functional.linear(features, self.head)


@dataclass(frozen=True)
class Segment:
    """One conversation's rows. halves [N, H]: feature halves of tokens 0..N-1; tokens int64 [N + 1]. The first label wanted
    is that of fused row `first`, its token `first + 2`; fused row i exists for i <= N - 1 and has a label for i <= N - 2."""

    halves: Tensor
    tokens: Tensor
    first: int


def unroll(network: EagleNetwork, segment: Segment, steps: int) -> list[Tensor]:
    """Predicted features of training-time test: step k (0-based) gives rows `first + k` .. N - 2, float32 [n_k, H].

    At step k, fused row i reads step k - 1's output of row i - 1 in place of the real feature; it attends to real fused rows
    up to i - k and to the steps between along its own diagonal, which is exactly what drafting k + 1 deep from row i - k
    sees. Rows before `first` serve as keys only.
    """
    last = len(segment.halves) - 1
    layer, first = network.layer, segment.first
    positions = torch.arange(last)
    real = network.fused(segment.halves[:last], segment.tokens[1 : last + 1])
    base = layer.keys(real, positions)
    outputs: list[Tensor] = []
    diagonals: list[Keys] = []
    x = real[first:]
    for step in range(steps):
        rows = positions[first + step :]
        if not len(rows):
            break
        if step:
            x = network.fused(network.drafted(outputs[-1][: len(rows)]), segment.tokens[first + step + 1 : last + 1])
            diagonals.append(layer.keys(x, rows))
        # Diagonal s of row i is step s's row i - (step - s): drop as many of its last rows as there are steps since.
        seen = [Keys(one.keys[: len(rows)], one.values[: len(rows)]) for one in diagonals]
        mixed = layer.attend(layer.queries(x, rows), base, first + 1, seen)
        outputs.append(network.outputs(layer.finish(x, mixed)))
    return outputs
