"""Who computes a step's gradient: this process, or several that each take a part of the step's conversations.

A depth's loss is a mean over its rows, so the step's gradient is that of the parts' losses, each weighed by its share of the
depth's rows. These shares are known only when every part has run forward: a part's step is two calls.

What a part computes follows from the parameters, its conversations and the step's number alone. Whoever has a copy of the
network can compute it, and compute it again.
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
    """Leaves the gradient of a step's loss in the network's parameters and says what was measured. step: taken before."""

    def __call__(self, examples: Sequence[Example], step: int) -> Measured: ...


@dataclass(frozen=True)
class Learning:
    """A network that is trained, what it is trained for and the vocabulary of its labels."""

    network: nn.Module
    objective: Objective
    vocabulary: DraftVocabulary


class LearnerOrder(Protocol):
    """What a run's network is built from, in this process or in another one: a record that can be sent."""

    def build(self) -> Learning:
        """Parameters are fresh: those of the run are copied in."""
        ...


# Who computes the steps of a network, which was built from the order.
GradientsOf = Callable[[nn.Module, LearnerOrder], Gradients]


class LocalGradients:
    """Implements Gradients in this process, in one pass."""

    def __init__(self, learning: Learning) -> None:
        self._learning = learning

    def __call__(self, examples: Sequence[Example], step: int) -> Measured:
        scores = self._learning.objective(pack(examples, self._learning.vocabulary, step))
        torch.stack([score.loss for score in scores if score.rows]).sum().backward()
        return Measured.of(scores)


class PartLearner:
    """One of several: a copy of the network that runs its part of each step."""

    def __init__(self, learning: Learning) -> None:
        self._learning, self._network = learning, learning.network
        self._scores: Sequence[Score] = ()

    def forward(self, parameters: Sequence[Tensor], examples: Sequence[Example], step: int) -> Measured:
        """Take the step's parameters, in the network's order, and run a part of its conversations."""
        with torch.no_grad():
            for own, value in zip(self._network.parameters(), parameters, strict=True):
                own.copy_(value)
        self._scores = self._learning.objective(pack(examples, self._learning.vocabulary, step))
        return Measured.of(self._scores)

    def backward(self, rows: Sequence[int]) -> list[Tensor | None]:
        """The part's share of the step's gradient, a tensor a parameter; None for those that it does not reach, which an
        optimizer leaves alone where no part reaches them. rows: of the whole step, by depth."""
        shares = [score.loss * (score.rows / rows[depth]) for depth, score in enumerate(self._scores) if score.rows]
        self._network.zero_grad(set_to_none=True)
        if shares:
            torch.stack(shares).sum().backward()
        self._scores = ()
        return [None if own.grad is None else own.grad.clone() for own in self._network.parameters()]


def added(parts: Sequence[Sequence[Tensor | None]]) -> list[Tensor | None]:
    """The step's gradient, a tensor a parameter, from those of its parts; None where all have None."""
    sums: list[Tensor | None] = []
    for shares in zip(*parts, strict=True):
        known = [share for share in shares if share is not None]
        # New tensors: what came from another process is read-only.
        sums.append(torch.stack(known).sum(dim=0) if known else None)
    return sums


def parts_of(examples: Sequence[Example], count: int) -> list[list[Example]]:
    """At most `count` parts of a step's conversations, none empty, alike in tokens: the longest go where least is."""
    parts: list[list[Example]] = [[] for _ in range(min(count, len(examples)))]
    for one in sorted(examples, key=lambda example: -len(example.tokens)):
        min(parts, key=lambda part: sum(len(example.tokens) for example in part)).append(one)
    return parts
