"""A small draft model out of the target: some of its layers, distilled on its own law, saved as an ordinary checkpoint.

The embedding and the vocabulary rows stay the target's, frozen, so the draft speaks the target's tokens by construction.
The loss is the cross entropy to the target's law at each label (M7.7 section 0x0BA), over the frequent tokens only: the
product with all vocabulary rows would be most of the training's cost. Rows of the other tokens keep the target's values and
are reached through features that stay close to the target's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from contracts.errors import InvalidArgument
from models.config import DecoderConfig
from models.weights import DecoderWeights, LayerWeights
from proposer.heads.layers import DecoderLayer, rms
from proposer.training import losses
from proposer.training.corpus import Batch
from proposer.training.labels import label_rows
from proposer.training.losses import Score


class DraftNetwork(nn.Module):
    """Layers `chosen` of the target, trainable, between its frozen embedding [V, H] and frozen vocabulary rows [V', H].

    Parameters: layers.K.*, norm. Raises InvalidArgument for layers that the target has not, and for targets whose layers
    have biases, head norms or windows.
    """

    embedding: Tensor
    head: Tensor

    def __init__(self, config: DecoderConfig, weights: DecoderWeights, chosen: Sequence[int], head: Tensor) -> None:
        super().__init__()
        if not chosen or list(chosen) != sorted(set(chosen)) or not 0 <= chosen[0] <= chosen[-1] < config.num_layers:
            raise InvalidArgument("layers", f"{list(chosen)} are not ascending layers below {config.num_layers}")
        if config.qkv_bias or config.o_bias or config.qk_norm or any(config.windows):
            raise InvalidArgument(
                "layers", f"drafts of {config.family} with biases, head norms or windows are not made"
            )
        self.config = replace(config, num_layers=len(chosen), windows=(None,) * len(chosen))
        self.layers = nn.ModuleList(_layer(config, weights.layers[index]) for index in chosen)
        self.norm = nn.Parameter(weights.final_norm.float().clone())
        self.register_buffer("embedding", weights.embedding.float(), persistent=False)
        self.register_buffer("head", head, persistent=False)
        self._untied = None if config.tied_head else weights.head

    def forward(self, tokens: Tensor) -> Tensor:
        """Final-norm rows float32 [N, H] of one segment's tokens int64 [N]."""
        x, positions = self.embedding[tokens], torch.arange(len(tokens))
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            mixed = layer.attend(layer.queries(x, positions), layer.keys(x, positions), 1)
            x = layer.finish(x, mixed)
        return self.norm * rms(x, self.config.rms_eps)

    def logits(self, rows: Tensor) -> Tensor:
        """float32 [N, V'] over the draft vocabulary."""
        return functional.linear(rows, self.head)

    def weights(self, dtype: torch.dtype) -> DecoderWeights:
        """The draft as a whole model in `dtype`; its head is tied to the embedding where the target's is."""
        made = []
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            parts = (layer.attention_norm, layer.qkv, layer.out, layer.mlp_norm, layer.gate_up, layer.down)
            first, qkv, out, second, gate_up, down = (part.detach().to(dtype) for part in parts)
            made.append(LayerWeights(first, qkv, None, None, None, out, None, second, gate_up, down))
        embedding = self.embedding.to(dtype)
        head = embedding if self._untied is None else self._untied.to(dtype)
        return DecoderWeights(embedding, tuple(made), self.norm.detach().to(dtype), head)


def _layer(config: DecoderConfig, weights: LayerWeights) -> DecoderLayer:
    layer = DecoderLayer(config)
    with torch.no_grad():
        for name in ("attention_norm", "qkv", "out", "mlp_norm", "gate_up", "down"):
            getattr(layer, name).copy_(getattr(weights, name).float())
    return layer


@dataclass(frozen=True)
class DraftObjective:
    """share: of the teacher's law in the loss; the rest is the text's own next token."""

    share: float = 0.9

    def scores(self, network: DraftNetwork, batch: Batch) -> Sequence[Score]:
        """One score: offset 1, the draft's own next token."""
        rows = label_rows(batch.stream, 1)
        states = torch.cat([network(batch.stream.tokens[start:stop]) for start, stop in batch.bounds])
        logits, labels = network.logits(states[rows]), batch.labels[rows + 1]
        soft = losses.teacher(logits, labels, batch.teacher_ids[rows], batch.teacher_probs[rows])
        loss = self.share * soft + (1 - self.share) * losses.hard(logits, labels)
        return [Score(loss, losses.hits(logits, labels), len(rows))]
