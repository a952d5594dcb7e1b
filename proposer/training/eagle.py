"""EAGLE's and EAGLE-3's objective over one packed batch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from proposer.heads.eagle import FINAL, EagleNetwork, Segment, unroll
from proposer.training import losses
from proposer.training.corpus import Batch
from proposer.training.losses import Score


@dataclass(frozen=True)
class EagleObjective:
    """steps: depths of training-time test; 1 is EAGLE's own training. token_weight, feature_weight: of the two losses at
    depth 1; both shrink by `decay` a depth. feature_weight is 0 for eagle3. noise: standard deviation of what is added to
    the target's rows in training, a share of each row's root mean square (as EAGLE does, section 4: few conversations are
    learnt by heart otherwise)."""

    steps: int = 3
    token_weight: float = 1.0
    feature_weight: float = 0.0
    decay: float = 0.9
    noise: float = 0.0

    def scores(self, network: EagleNetwork, batch: Batch) -> Sequence[Score]:
        """One score a depth."""
        halves = network.real(self.noisy(batch) if torch.is_grad_enabled() else batch.hidden)
        per_step: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = [([], []) for _ in range(self.steps)]
        for (start, stop), label in zip(batch.bounds, batch.label_starts, strict=True):
            segment = Segment(halves[start : stop - 1], batch.stream.tokens[start:stop], max(label - start - 2, 0))
            for step, predicted in enumerate(unroll(network, segment, self.steps)):
                first = start + segment.first + step
                per_step[step][0].append(predicted)
                per_step[step][1].append(torch.arange(first, first + len(predicted)))
        return [self._score(network, batch, *parts, step) for step, parts in enumerate(per_step) if parts[0]]

    def noisy(self, batch: Batch) -> Mapping[str, Tensor]:
        """The batch's rows with the noise of its step."""
        if not self.noise:
            return batch.hidden
        noisy = {}
        for index, (tap, rows) in enumerate(batch.hidden.items()):
            size = self.noise * rows.square().mean(1, keepdim=True).sqrt()
            parts = [
                torch.randn((stop - start, rows.shape[1]), generator=_generator(batch, start, stop, index))
                for start, stop in batch.bounds
            ]
            noisy[tap] = rows + size * torch.cat(parts)
        return noisy

    def _score(
        self, network: EagleNetwork, batch: Batch, predicted: list[torch.Tensor], rows: list[torch.Tensor], step: int
    ) -> Score:
        output, row = torch.cat(predicted), torch.cat(rows)
        # Fused row i predicts the feature of row i + 1, whose law is that of token i + 2.
        labels = batch.labels[row + 2]
        logits = batch.own.beside(network.logits(output), output, row + 2, batch.stream.segments[row + 2])
        loss = self.token_weight * losses.teacher(
            logits, labels, batch.teacher_ids[row + 1], batch.teacher_probs[row + 1]
        )
        if self.feature_weight:
            loss = loss + self.feature_weight * losses.feature(output, batch.hidden[FINAL][row + 1])
        return Score(loss * self.decay**step, losses.hits(logits, labels), len(labels))


def _generator(batch: Batch, start: int, stop: int, tap: int) -> torch.Generator:
    """Keyed by conversation and step, whatever stands beside it: a resumed run is the run it would have been, and so is one
    whose steps are split over several processes."""
    key = f"{batch.step} {tap} ".encode() + batch.stream.tokens[start:stop].numpy().tobytes()
    return torch.Generator().manual_seed(int.from_bytes(hashlib.blake2b(key, digest_size=6).digest()))
