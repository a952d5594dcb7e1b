"""Objectives of the heads over one row: Medusa, Hydra (hard and teacher losses), Clover. Offsets as in labels.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from proposer.heads.clover import CloverNetwork
from proposer.heads.hydra import HydraNetwork
from proposer.heads.manifest_checks import MAX_DEPTH
from proposer.heads.medusa import FINAL, MedusaNetwork
from proposer.heads.prefix import PrefixNetwork
from proposer.training import losses
from proposer.training.corpus import Batch
from proposer.training.labels import label_rows
from proposer.training.losses import Score


@dataclass(frozen=True)
class FutureObjective:
    """decay: weight of depth k is decay ** k, k from 1 (Medusa's paper: 0.8). soft: the teacher's law rather than labels."""

    decay: float = 0.8
    soft: bool = False

    def medusa(self, network: MedusaNetwork, batch: Batch) -> Sequence[Score]:
        """One score a head; a head without labels has rows 0 and is no part of the sum (M7.2 section 0x05A)."""
        scores = []
        for j in range(len(network.heads)):
            rows = label_rows(batch.stream, j + 2)
            scores.append(self._score(network.logits(batch.hidden[FINAL][rows], j), batch, rows, j + 2))
        return scores

    def hydra(self, network: HydraNetwork, batch: Batch) -> Sequence[Score]:
        """Teacher forcing: head i sees the text's own tokens t + 1 .. t + i and predicts t + i + 1."""
        states = augmented(network.prefix, batch)
        scores = []
        for i in range(1, network.depth + 1):
            rows = label_rows(batch.stream, i + 1)
            tokens = torch.stack([batch.stream.tokens[rows + k] for k in range(1, i + 1)], dim=1)
            logits = network.logits(states[rows], tokens) if len(rows) else network.head.new_empty(0, len(network.head))
            scores.append(self._score(logits, batch, rows, i + 1))
        return scores

    def clover(self, network: CloverNetwork, batch: Batch) -> Sequence[Score]:
        """The recurrent state is carried over the text's own tokens; depth k reads t + 1 .. t + k."""
        wanted = [label_rows(batch.stream, k + 1) for k in range(1, network.depth + 1)]
        every = torch.unique(torch.cat(wanted))
        state = augmented(network.prefix, batch)[every]
        last = len(batch.stream.tokens) - 1
        scores = []
        for k, rows in enumerate(wanted, start=1):
            # Rows whose label lies beyond this depth's reach are stepped too, and not read again.
            state = network.step(state, batch.stream.tokens[(every + k).clamp(max=last)])
            chosen = state[torch.searchsorted(every, rows)]
            scores.append(self._score(network.logits(chosen), batch, rows, k + 1))
        return scores

    def _score(self, logits: Tensor, batch: Batch, rows: Tensor, offset: int) -> Score:
        labels = batch.labels[rows + offset]
        if self.soft:
            before = rows + offset - 1
            loss = losses.teacher(logits, labels, batch.teacher_ids[before], batch.teacher_probs[before])
        else:
            loss = losses.hard(logits, labels)
        return Score(loss * self.decay ** (offset - 1), losses.hits(logits, labels), len(rows))


def augmented(prefix: PrefixNetwork | None, batch: Batch) -> Tensor:
    """float32 [T, H]: the target's final rows, through the prefix layer where there is one, each segment by itself."""
    rows = batch.hidden[FINAL]
    if prefix is None:
        return rows
    parts = []
    for (start, stop), label in zip(batch.bounds, batch.label_starts, strict=True):
        # Rows before the first one read, by the deepest head there is, serve as keys only.
        first = max(label - start - MAX_DEPTH, 0)
        own = rows[start : stop - 1]
        parts += [own[:first], prefix(own, first), rows[stop - 1 : stop]]
    return torch.cat(parts)
