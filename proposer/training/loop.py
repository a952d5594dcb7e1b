"""The training loop of every family: AdamW, linear warm-up and cosine, gradient clipping, resume, one row of figures an
interval."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from contracts.errors import FailedPrecondition
from proposer.heads.vocabulary import DraftVocabulary
from proposer.training.corpus import Example, groups, pack
from proposer.training.gradients import Gradients, Learning, LocalGradients, Measured, Objective


@dataclass(frozen=True)
class Recipe:
    """token_budget: labels seen in all, repeats counted: the same number for every family that is compared.
    batch_tokens: labels of a step. groups: learning rate multiples by parameter-name prefix."""

    token_budget: int
    batch_tokens: int = 1024
    learning_rate: float = 1e-3
    warmup: float = 0.05
    weight_decay: float = 0.01
    clip: float = 0.5
    seed: int = 0
    report_every: int = 50
    beta2: float = 0.95


@dataclass
class Figures:
    """One reported row: means over the steps since the last one. accuracy: per depth, labels hit by the first choice."""

    step: int
    tokens: int
    seconds: float
    loss: float
    accuracy: list[float]
    held_out: list[float] = field(default_factory=list)

    @property
    def expected_tokens(self) -> float:
        """1 + sum of products of held-out accuracies (or training ones): committed tokens of a greedy chain, roughly."""
        total, product = 1.0, 1.0
        for accuracy in self.held_out or self.accuracy:
            product *= accuracy
            total += product
        return total


class State(Protocol):
    """Where a run is kept: what is there of it, and the place for more (`run_state.RunState`)."""

    @property
    def loaded(self) -> Mapping[str, Any] | None: ...

    def save(self, state: Mapping[str, Any]) -> None: ...


class Trainer:
    """One run, which goes on from `state` and saves itself there. rate_of: learning-rate multiple of a parameter. gradients:
    who computes a step's; this process where none is given. Raises FailedPrecondition where the state
    is of another network."""

    def __init__(
        self,
        learning: Learning,
        recipe: Recipe,
        *,
        rate_of: Callable[[str], float] = lambda name: 1.0,
        state: State | None = None,
        gradients: Gradients | None = None,
    ) -> None:
        self._network, self._objective, self._vocabulary = learning.network, learning.objective, learning.vocabulary
        self._recipe = recipe
        self._gradients = gradients or LocalGradients(learning)
        self._state = state
        groups = [
            {
                "params": [parameter],
                "rate": rate_of(name),
                "weight_decay": recipe.weight_decay if parameter.dim() > 1 else 0.0,
            }
            for name, parameter in self._network.named_parameters()
            if parameter.requires_grad
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, recipe.beta2))
        self._step = self._tokens = 0
        self._seconds = 0.0
        # Every row reported so far, over all parts of a resumed run.
        self.history: list[Figures] = []
        if state is not None and state.loaded is not None:
            self._resume(state.loaded)

    def run(
        self, examples: Sequence[Example], held_out: Sequence[Example], report: Callable[[Figures, int], None]
    ) -> Figures:
        """Train up to the token budget; `report` gets each row of figures and the budget. Returns the last row."""
        recipe = self._recipe
        gathered = _Gathered()
        started = time.monotonic() - self._seconds
        last: Figures | None = None
        for group in self._stream(examples):
            self._optimizer.zero_grad(set_to_none=True)
            measured = self._gradients(group, self._step)
            parameters = [p for options in self._optimizer.param_groups for p in options["params"]]
            nn.utils.clip_grad_norm_(parameters, recipe.clip)
            for options in self._optimizer.param_groups:
                options["lr"] = recipe.learning_rate * options["rate"] * self._schedule()
            self._optimizer.step()
            self._step += 1
            self._tokens += sum(one.label_tokens for one in group)
            self._seconds = time.monotonic() - started
            gathered.add(measured)
            over = self._tokens >= recipe.token_budget
            if self._step % recipe.report_every == 0 or over:
                last = Figures(self._step, self._tokens, self._seconds, gathered.loss, gathered.accuracy)
                if self._step % (4 * recipe.report_every) == 0 or over:
                    last.held_out = evaluate(self._objective, held_out, self._vocabulary)
                self.history.append(last)
                report(last, recipe.token_budget)
                self._save()
                gathered = _Gathered()
            if over:
                break
        if last is None:
            last = self.history[-1] if self.history else Figures(self._step, self._tokens, self._seconds, math.nan, [])
            last.held_out = evaluate(self._objective, held_out, self._vocabulary)
        return last

    def _stream(self, examples: Sequence[Example]) -> Iterator[list[Example]]:
        """Epochs without end; after a resume, what the run had seen is passed over."""
        recipe, done, epoch = self._recipe, self._step, 0
        while self._tokens < recipe.token_budget:
            for group in groups(examples, label_tokens=recipe.batch_tokens, seed=recipe.seed + epoch):
                if done:
                    done -= 1
                    continue
                yield group
            epoch += 1

    def _schedule(self) -> float:
        share = self._tokens / self._recipe.token_budget
        if share < self._recipe.warmup:
            return (share + 1e-3) / (self._recipe.warmup + 1e-3)
        return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))

    def _save(self) -> None:
        if self._state is None:
            return
        state = {
            "network": dict(self._network.named_parameters()),
            "optimizer": self._optimizer.state_dict(),
            "step": self._step,
            "tokens": self._tokens,
            "seconds": self._seconds,
            "history": [asdict(one) for one in self.history],
        }
        self._state.save(state)

    def _resume(self, state: Mapping[str, Any]) -> None:
        mine = {name: tuple(parameter.shape) for name, parameter in self._network.named_parameters()}
        theirs = {name: tuple(value.shape) for name, value in state["network"].items()}
        if mine != theirs:
            wrong = sorted(name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name))
            raise FailedPrecondition("state.network", f"is of another network: {', '.join(wrong[:3])}")
        with torch.no_grad():
            for name, parameter in self._network.named_parameters():
                parameter.copy_(state["network"][name])
        self._optimizer.load_state_dict(state["optimizer"])
        self._step, self._tokens, self._seconds = state["step"], state["tokens"], state["seconds"]
        self.history = [Figures(**one) for one in state.get("history", ())]


class _Gathered:
    """Sums between two reports."""

    def __init__(self) -> None:
        self._losses: list[float] = []
        self._hits: list[int] = []
        self._rows: list[int] = []

    def add(self, measured: Measured) -> None:
        self._losses.append(measured.loss)
        for depth, (hits, rows) in enumerate(zip(measured.hits, measured.rows, strict=True)):
            if depth == len(self._hits):
                self._hits.append(0)
                self._rows.append(0)
            self._hits[depth] += hits
            self._rows[depth] += rows

    @property
    def loss(self) -> float:
        return sum(self._losses) / max(1, len(self._losses))

    @property
    def accuracy(self) -> list[float]:
        return [hits / rows if rows else 0.0 for hits, rows in zip(self._hits, self._rows, strict=True)]


@torch.no_grad()
def evaluate(objective: Objective, examples: Sequence[Example], vocabulary: DraftVocabulary) -> list[float]:
    """Accuracy per depth over held-out conversations."""
    gathered = _Gathered()
    for group in groups(examples, label_tokens=2048, seed=0):
        gathered.add(Measured.of(objective(pack(group, vocabulary))))
    return gathered.accuracy
