"""EAGLE's and EAGLE-3's objective over one packed batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from proposer.heads.eagle import FINAL, EagleNetwork, Segment, unroll
from proposer.training import losses
from proposer.training.corpus import Batch
from proposer.training.losses import Score


@dataclass(frozen=True)
class EagleObjective:
    """steps: depths of training-time test; 1 is EAGLE's own training. token_weight, feature_weight: of the two losses at
    depth 1; both shrink by `decay` a depth. feature_weight is 0 for eagle3."""

    steps: int = 3
    token_weight: float = 1.0
    feature_weight: float = 0.0
    decay: float = 0.9

    def scores(self, network: EagleNetwork, batch: Batch) -> Sequence[Score]:
        """One score a depth."""
        halves = network.real(batch.hidden)
        per_step: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = [([], []) for _ in range(self.steps)]
        for (start, stop), answer in zip(batch.bounds, batch.answer_starts, strict=True):
            segment = Segment(halves[start : stop - 1], batch.stream.tokens[start:stop], max(answer - start - 2, 0))
            for step, predicted in enumerate(unroll(network, segment, self.steps)):
                first = start + segment.first + step
                per_step[step][0].append(predicted)
                per_step[step][1].append(torch.arange(first, first + len(predicted)))
        return [self._score(network, batch, *parts, step) for step, parts in enumerate(per_step) if parts[0]]

    def _score(
        self, network: EagleNetwork, batch: Batch, predicted: list[torch.Tensor], rows: list[torch.Tensor], step: int
    ) -> Score:
        output, row = torch.cat(predicted), torch.cat(rows)
        # Fused row i predicts the feature of row i + 1, whose law is that of token i + 2.
        labels = batch.labels[row + 2]
        logits = network.logits(output)
        loss = self.token_weight * losses.teacher(
            logits, labels, batch.teacher_ids[row + 1], batch.teacher_probs[row + 1]
        )
        if self.feature_weight:
            loss = loss + self.feature_weight * losses.feature(output, batch.hidden[FINAL][row + 1])
        return Score(loss * self.decay**step, losses.hits(logits, labels), len(labels))
