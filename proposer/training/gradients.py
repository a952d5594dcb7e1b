"""Who computes a step's gradient: this process, or several that each take a part of the step's conversations.

A depth's loss is a mean over its rows, so the step's gradient is that of the parts' losses, each weighed by its share of the
depth's rows. These shares are known only when every part has run forward: a part's step is two calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from proposer.heads.vocabulary import DraftVocabulary
from proposer.training.corpus import Batch, Example, pack
from proposer.training.losses import Score

Objective = Callable[[Batch], Sequence[Score]]


@dataclass(frozen=True)
class Measured:
    """Of one step or a part of it: its loss summed over depths; per depth that loss, the labels hit and the rows."""

    loss: float
    losses: tuple[float, ...]
    hits: tuple[int, ...]
    rows: tuple[int, ...]

    @classmethod
    def of(cls, scores: Sequence[Score]) -> Measured:
        losses = tuple(float(score.loss.detach()) if score.rows else 0.0 for score in scores)
        return cls(sum(losses), losses, tuple(score.hits for score in scores), tuple(score.rows for score in scores))

    @classmethod
    def joined(cls, parts: Sequence[Measured]) -> Measured:
        """What one process would have measured over all parts."""
        depths = range(max(len(part.rows) for part in parts))

        def at(values: Sequence[float], depth: int) -> float:
            return values[depth] if depth < len(values) else 0

        rows = tuple(int(sum(at(part.rows, depth) for part in parts)) for depth in depths)
        hits = tuple(int(sum(at(part.hits, depth) for part in parts)) for depth in depths)
        losses = tuple(
            sum(at(part.losses, depth) * at(part.rows, depth) for part in parts) / max(1, rows[depth])
            for depth in depths
        )
        return cls(sum(losses), losses, hits, rows)


class Gradients(Protocol):
    """Leaves the gradient of a step's loss in the network's parameters and says what was measured."""

    def __call__(self, examples: Sequence[Example]) -> Measured: ...


class LocalGradients:
    """Implements Gradients in this process, in one pass."""

    def __init__(self, objective: Objective, vocabulary: DraftVocabulary) -> None:
        self._objective, self._vocabulary = objective, vocabulary

    def __call__(self, examples: Sequence[Example]) -> Measured:
        scores = self._objective(pack(examples, self._vocabulary))
        torch.stack([score.loss for score in scores if score.rows]).sum().backward()
        return Measured.of(scores)


class PartLearner:
    """One of several: a copy of the network that runs its part of each step."""

    def __init__(self, network: nn.Module, objective: Objective, vocabulary: DraftVocabulary) -> None:
        self._network, self._objective, self._vocabulary = network, objective, vocabulary
        self._scores: Sequence[Score] = ()

    def forward(self, parameters: Sequence[Tensor], examples: Sequence[Example]) -> Measured:
        """Take the step's parameters, in the network's order, and run a part of its conversations."""
        with torch.no_grad():
            for own, value in zip(self._network.parameters(), parameters, strict=True):
                own.copy_(value)
        self._scores = self._objective(pack(examples, self._vocabulary))
        return Measured.of(self._scores)

    def backward(self, rows: Sequence[int]) -> list[Tensor]:
        """The part's share of the step's gradient, a tensor a parameter. rows: of the whole step, by depth."""
        shares = [score.loss * (score.rows / rows[depth]) for depth, score in enumerate(self._scores) if score.rows]
        self._network.zero_grad(set_to_none=True)
        if shares:
            torch.stack(shares).sum().backward()
        self._scores = ()
        return [torch.zeros_like(own) if own.grad is None else own.grad.clone() for own in self._network.parameters()]


def parts_of(examples: Sequence[Example], count: int) -> list[list[Example]]:
    """At most `count` parts of a step's conversations, none empty, alike in tokens: the longest go where least is."""
    parts: list[list[Example]] = [[] for _ in range(min(count, len(examples)))]
    for one in sorted(examples, key=lambda example: -len(example.tokens)):
        min(parts, key=lambda part: sum(len(example.tokens) for example in part)).append(one)
    return parts
