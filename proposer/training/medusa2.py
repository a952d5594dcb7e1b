"""Medusa-2: heads and backbone trained together without losing the backbone (arXiv 2401.10774, section 3.2; M7.2 0x05B).

    direct           L = L_LM + lambda_0 L_Medusa          (the text's own next tokens keep the backbone)
    self-distilled   L = KL(teacher || student) + lambda_0 L_Medusa   (teacher: the adapter off; for self-made text)

Two groups with two learning rates (heads faster), and a first stage that trains heads alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from contracts.errors import InvalidArgument
from proposer.heads.medusa import FINAL, MedusaNetwork
from proposer.training.corpus import Batch
from proposer.training.futures import FutureObjective
from proposer.training.labels import label_rows, labels_at
from proposer.training.lora import LoraBackbone
from proposer.training.losses import Score


class Medusa2Network(nn.Module):
    """Heads and backbone as one trainable module. Parameters: heads.*, backbone.a.*, backbone.b.*."""

    def __init__(self, heads: MedusaNetwork, backbone: LoraBackbone) -> None:
        super().__init__()
        self.heads, self.backbone = heads, backbone


@dataclass(frozen=True)
class Medusa2Recipe:
    """head_rate and backbone_rate: learning-rate multiples of the two groups. heads_weight: lambda_0. warm_up: batches of
    the first stage, heads alone. distil: keep the teacher's law rather than the text's tokens.

    Raises InvalidArgument unless heads learn faster than the backbone.
    """

    head_rate: float = 1.0
    backbone_rate: float = 0.25
    heads_weight: float = 0.2
    warm_up: int = 50
    distil: bool = True

    def __post_init__(self) -> None:
        if not self.head_rate > self.backbone_rate > 0:
            raise InvalidArgument(
                "medusa2.head_rate", f"{self.head_rate} must exceed backbone_rate {self.backbone_rate}"
            )

    def rate_of(self, name: str) -> float:
        """The multiple of a parameter of `Medusa2Network`."""
        return self.backbone_rate if name.startswith("backbone.") else self.head_rate


class Medusa2Objective:
    """One score for the backbone (offset 1), then one a head."""

    def __init__(self, recipe: Medusa2Recipe, future: FutureObjective | None = None) -> None:
        self._recipe, self._future = recipe, future or FutureObjective()

    def scores(self, network: Medusa2Network, batch: Batch) -> Sequence[Score]:
        """In the first stage (`Batch.step` below warm_up) the heads read the unchanged target, and the backbone gets no
        gradient and has no rows."""
        backbone, tokens = network.backbone, batch.stream.tokens
        alone = torch.is_grad_enabled() and batch.step < self._recipe.warm_up
        with torch.no_grad():
            teacher = backbone(tokens, batch.bounds, adapted=False)
        student = teacher if alone else backbone(tokens, batch.bounds, adapted=True)
        heads = [
            replace(score, loss=score.loss * self._recipe.heads_weight)
            for score in self._future.medusa(network.heads, replace(batch, hidden={**batch.hidden, FINAL: student}))
        ]
        if alone:
            return [Score(torch.zeros(()), 0, 0), *heads]
        rows = label_rows(batch.stream, 1)
        logits, labels = backbone.logits(student[rows]), labels_at(batch.stream, rows, 1)
        loss = self._kept(logits, backbone.logits(teacher[rows]), labels)
        return [Score(loss, int((logits.argmax(dim=1) == labels).sum()), len(rows)), *heads]

    def _kept(self, logits: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
        if not self._recipe.distil:
            return functional.cross_entropy(logits, labels)
        return functional.kl_div(
            torch.log_softmax(logits, dim=1), torch.log_softmax(teacher, dim=1), log_target=True, reduction="batchmean"
        )
