"""The enumerated cases: laws, shapes and drafters per exact verifier. Also what benchmarks/verifiers.py enumerates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from contracts.draft_law import DraftLaw, law_from_probabilities
from contracts.topology import SamplingRelation
from tests.helpers.enumeration import Drafter, Outcome, Prefix, Select, enumerate_round, marginal_error
from verifier.selection import VERIFIERS

T = TypeVar("T")
Floats = npt.NDArray[np.float64]
TargetOf = Callable[[Prefix], Floats]
PREFIX_LEN = 5
TOLERANCE = 1e-12

INDEPENDENT = SamplingRelation.INDEPENDENT
WITHOUT = SamplingRelation.WITHOUT_REPLACEMENT
Q_BASED = {
    "rejection": INDEPENDENT,
    "block": INDEPENDENT,
    "spectr": INDEPENDENT,
    "specinfer": INDEPENDENT,
    "sequoia": WITHOUT,
    "traversal": WITHOUT,
}
LAW_KINDS = ("random", "peaked", "equal", "disjoint", "zeros", "ties", "narrow")


def _seeded(seed: int, salt: int, prefix: Prefix) -> np.random.Generator:
    return np.random.default_rng([seed, salt, len(prefix), *prefix])


def _integers(rng: np.random.Generator, vocab: int, concentration: float) -> DraftLaw:
    return law_from_probabilities(np.arange(vocab), rng.dirichlet(np.full(vocab, concentration)) + 1e-9)


def _half(vocab: int, odd: int) -> Floats:
    return np.where(np.arange(vocab) % 2 == odd, 1.0, 0.0)


def _scaled(weights: Floats) -> Floats:
    return np.asarray(weights / weights.sum())


def laws(kind: str, seed: int, vocab: int) -> tuple[TargetOf, Callable[[Prefix], DraftLaw]]:
    """(target law, draft law) per candidate prefix; every prefix has laws of its own."""

    def draft(prefix: Prefix) -> DraftLaw:
        rng = _seeded(seed, 1, prefix)
        if kind == "disjoint" and vocab > 1:
            return law_from_probabilities(np.arange(vocab), _half(vocab, 1) * rng.uniform(0.1, 1.0, vocab))
        if kind == "zeros" and vocab > 2:
            weights = rng.uniform(0.1, 1.0, vocab)
            weights[int(rng.integers(vocab))] = 0.0
            return law_from_probabilities(np.arange(vocab), weights)
        if kind == "ties":
            return law_from_probabilities(np.arange(vocab), np.ones(vocab))
        if kind == "narrow":
            return law_from_probabilities([int(rng.integers(vocab))], [1.0])
        return _integers(rng, vocab, 0.3 if kind == "peaked" else 1.0)

    def target(prefix: Prefix) -> Floats:
        rng = _seeded(seed, 2, prefix)
        if kind == "equal":
            return draft(prefix).dense(vocab)
        if kind == "disjoint" and vocab > 1:
            return _scaled(_half(vocab, 0) * rng.uniform(0.1, 1.0, vocab))
        if kind == "zeros" and vocab > 2:
            weights = rng.uniform(0.1, 1.0, vocab)
            weights[int(rng.integers(vocab))] = 0.0
            return _scaled(weights)
        if kind == "ties":
            return np.full(vocab, 1.0 / vocab)
        return rng.dirichlet(np.full(vocab, 0.3 if kind == "peaked" else 1.0))

    return _cached(target), _cached(draft)


def _cached(function: Callable[[Prefix], T]) -> Callable[[Prefix], T]:
    known: dict[Prefix, T] = {}

    def lookup(prefix: Prefix) -> T:
        if prefix not in known:
            known[prefix] = function(prefix)
        return known[prefix]

    return lookup


@dataclass(frozen=True)
class Case:
    """One enumeration. `second`: widths of a second drafter with laws of its own (same laws where `same_laws`)."""

    verifier: str
    kind: str
    vocab: int
    widths: tuple[int, ...]
    seed: int = 0
    second: tuple[int, ...] = ()
    same_laws: bool = False
    budget: int = 64

    @property
    def name(self) -> str:
        more = f"+{'x'.join(map(str, self.second))}" if self.second else ""
        trimmed = f"-budget{self.budget}" if self.budget < 64 else ""
        return f"{self.verifier}-{self.kind}-v{self.vocab}-{'x'.join(map(str, self.widths))}{more}{trimmed}-{self.seed}"

    def drafters(self) -> list[Drafter]:
        relation = Q_BASED.get(self.verifier, INDEPENDENT)
        _, draft = laws(self.kind, self.seed, self.vocab)
        out = [Drafter("a", self.widths, draft, relation)]
        if self.second:
            _, other = laws(self.kind, self.seed if self.same_laws else self.seed + 100, self.vocab)
            out.append(Drafter("b", self.second, other, relation))
        return out

    def target(self) -> TargetOf:
        return laws(self.kind, self.seed, self.vocab)[0]

    @property
    def horizon(self) -> int:
        return max(len(self.widths), len(self.second)) + 1

    def run(self, select: Select | None = None) -> Outcome:
        """Enumerates the round; `select` stands in for the shipped verifier, and outcomes are kept."""
        return _run(self, select)

    def error(self, select: Select | None = None) -> float:
        """Largest deviation of any output sequence's probability from the target's."""
        return marginal_error(self.run(select), self.target(), self.horizon)


@cache
def _run(case: Case, select: Select | None) -> Outcome:
    return enumerate_round(
        case.drafters(),
        select or shipped(case.verifier),
        case.target(),
        vocab_size=case.vocab,
        budget=case.budget,
        horizon=case.horizon,
    )


def shipped(name: str) -> Select:
    """The registry's verifier as enumeration calls it."""
    verifier = VERIFIERS[name]
    return lambda graph, laws, chooser: verifier.select(graph, laws, chooser, prefix_len=PREFIX_LEN)


def exact_cases() -> Iterator[Case]:
    """All of them, some four hundred; well under a second each."""
    for name in (*Q_BASED, "membership"):
        sequence_only = name in {"rejection", "block"}
        node = [(1,)] if sequence_only else [(1,), (2,), (3,)]
        trees = [(1, 1)] if sequence_only else [(2, 1), (1, 2), (2, 2)]
        if name == "membership":
            trees = [(2, 1), (2, 2)]
        for kind in LAW_KINDS:
            for seed in (0, 1):
                yield from (Case(name, kind, 4 if w == (2,) else 3, w, seed) for w in node if seed == 0 or w != (3,))
            yield from (Case(name, kind, 2 if w == (2, 2) else 3, w) for w in trees)
        yield from (Case(name, kind, 3, (1, 1, 1), 3) for kind in ("random", "peaked", "zeros"))
        yield Case(name, "ties", 1, (1, 1))
        if not sequence_only:
            yield Case(name, "random", 2, (2, 1, 1), 4)
        yield Case(name, "random", 3, (1, 1, 1), 5, budget=2)
    for name in ("specinfer", "sequoia", "traversal", "membership"):
        for kind in ("random", "zeros", "narrow"):
            yield Case(name, kind, 3, (2,), 6, second=(1,))
            yield Case(name, kind, 2, (1, 1), 7, second=(2, 1))
            yield Case(name, kind, 3, (1, 1), 8, second=(1,), budget=2)
    yield Case("spectr", "random", 3, (1,), 9, second=(2,), same_laws=True)
    for name in ("specinfer", "spectr"):
        yield Case(name, "random", 2, (2, 2), 10, budget=4)
    for name in ("sequoia", "traversal"):
        yield Case(name, "random", 3, (2, 2), 11, budget=4)
        yield Case(name, "narrow", 3, (2, 2), 12)
