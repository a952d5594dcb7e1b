"""Sources that take long: asked only once it is known what those that answer at once have offered, where that pays."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from contracts.proposal import Proposal
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology
from orchestrator.budget.adaptive import AdaptiveBudget
from orchestrator.budget.base import FixedBudget
from orchestrator.budget.experience import Experience
from orchestrator.gather import Gatherer
from tests.unit.orchestrator.test_orchestrator_budget import asks, chain, play, ranked


def _session(experience: Experience, *, wait_us: float) -> dict[bool, list[bool]]:
    """Forty rounds, by turns with a strong lookup, which holds, and without any, where the head's offer holds: whether
    the head was asked, by whether lookup was strong.
    """
    budget = AdaptiveBudget(experience)
    out: dict[bool, list[bool]] = {True: [], False: []}
    for number in range(40):
        strong = number % 2 == 0
        offers = [chain(8, match_length=12)] if strong else []
        asked = asks(budget, "head", offers)
        out[strong].append(asked)
        play(budget, [*offers, *([ranked([0.9])] if asked else [])], 8 if strong else 1, row_us=500.0, wait_us=wait_us)
    return out


def test_a_dear_source_is_asked_where_others_are_weak_and_hardly_where_they_are_strong() -> None:
    experience = Experience()
    for _ in range(6):
        asked = _session(experience, wait_us=5_000.0)
    assert all(asked[False])
    assert sum(asked[True]) <= 5


def test_a_cheap_source_is_asked_beside_the_others_whatever_they_offer() -> None:
    experience = Experience()
    for _ in range(4):
        asked = _session(experience, wait_us=300.0)
    assert all(asked[False])
    assert all(asked[True])


@dataclass
class _Source:
    """Notes when it was asked."""

    name: str
    at_once: bool
    asked: list[str]
    description: Any = field(init=False)
    retrieves: bool = False
    generation: int = 0

    def __post_init__(self) -> None:
        @dataclass
        class Description:
            name: str
            semantics: Any = ProbabilitySemantics.ABSENT
            relation: Any = SamplingRelation.DETERMINISTIC_LOOKUP
            topology: Any = Topology.TREE

        self.description = Description(self.name)

    async def offer(self, request: Any) -> Proposal:
        self.asked.append(self.name)
        if not self.at_once:
            await asyncio.sleep(0)
        description = self.description
        return Proposal(self.name, (), description.semantics, description.relation, Topology.TREE, "round")


@dataclass
class _Request:
    source: str
    node_budget: int = 4
    max_depth: int = 4
    manifest: Any = field(default_factory=lambda: type("Manifest", (), {"hash": "round"}))


class _Spans:
    def offer(self, *_: object, **__: object) -> Any:
        from contextlib import nullcontext

        from opentelemetry import trace

        return nullcontext(trace.INVALID_SPAN)


def _gathered(dear: set[str], worth: set[str], names: dict[str, bool]) -> tuple[list[str], list[str]]:
    """Order of asking, and whose offers came. names: whether each answers at once."""
    asked: list[str] = []
    heard: list[str] = []

    def is_worth(source: str, offers: Any) -> bool:
        heard.append(f"{source} after {len(offers)}")
        return source in worth

    async def run() -> list[str]:
        gatherer = Gatherer(walks_laws=False, deadline_s=5.0, vocab_size=10, spans=_Spans())  # type: ignore[arg-type]
        asks: Any = [(_Source(name, at_once, asked), _Request(name)) for name, at_once in names.items()]
        gathered = await gatherer.gather(asks, dear=dear.__contains__, worth=is_worth)
        assert gathered.failures == {}
        return [offer.source for offer in gathered.offers]

    offered = asyncio.run(run())
    assert len(heard) == len([name for name in names if name in dear])
    return asked, offered


def test_what_has_to_be_waited_for_is_asked_before_the_others_compute() -> None:
    assert _gathered(set(), set(), {"lookup": True, "head": False}) == (["head", "lookup"], ["lookup", "head"])


def test_a_dear_source_is_asked_last_and_only_if_it_is_worth_it() -> None:
    names = {"head": False, "lookup": True, "index": False}
    assert _gathered({"head"}, {"head"}, names) == (["index", "lookup", "head"], ["head", "lookup", "index"])
    assert _gathered({"head"}, set(), names) == (["index", "lookup"], ["lookup", "index"])


@pytest.mark.parametrize("worth", [True, False])
def test_a_dear_source_alone_is_asked_only_if_it_is_worth_it(worth: bool) -> None:
    expected = ["head"] if worth else []
    assert _gathered({"head"}, {"head"} if worth else set(), {"head": False}) == (expected, expected)


def test_the_fixed_budget_asks_all_side_by_side() -> None:
    budget = FixedBudget()
    assert (budget.dear("head"), budget.worth_asking("head", ())) == (False, True)


def _reach(budget: AdaptiveBudget, *, rounds: int, accept: int, wait_us: float) -> int:
    """What the head is asked after so many rounds in which it drafts as deep as it is asked, eight levels at most."""
    for _ in range(rounds):
        depth = min(8, budget.reaches.get("head", 8))
        play(budget, [chain(depth, "head")], min(accept, depth), row_us=1_500.0, wait_us=wait_us)
    return budget.reaches.get("head", 8)


def test_a_dear_source_is_asked_one_level_more_than_what_is_verified_of_it() -> None:
    budget = AdaptiveBudget(Experience())
    assert _reach(budget, rounds=200, accept=1, wait_us=5_000.0) <= 3
    # And again as deep as it goes once that holds.
    assert _reach(budget, rounds=400, accept=8, wait_us=5_000.0) >= 8


def test_a_cheap_source_is_always_asked_in_full() -> None:
    budget = AdaptiveBudget(Experience())
    assert _reach(budget, rounds=200, accept=1, wait_us=300.0) == 8
    assert budget.reaches == {}
    assert FixedBudget().reaches == {}


def test_a_session_begins_with_the_reach_that_earlier_ones_found() -> None:
    experience = Experience()
    found = _reach(AdaptiveBudget(experience), rounds=200, accept=1, wait_us=5_000.0)
    assert AdaptiveBudget(experience).reaches == {"head": found}
