"""orchestrator/catalogue.py: how old a description may be, and who waits for a new one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator import catalogue as module
from orchestrator.catalogue import Catalogue


class Peer:
    """Describes itself by how often it was asked; `gate` holds answers back."""

    def __init__(self) -> None:
        self.asked = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def describe(self, *_: object) -> Any:
        self.asked += 1
        answer = self.asked
        await self.gate.wait()
        return answer


class Retriever(Peer):
    """Serves one index."""

    live_generation = 0

    async def describe(self, *tenant: object) -> Any:
        number = await super().describe(*tenant)
        return [SimpleNamespace(number=number, live_generation=self.live_generation)]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def _made(**changes: float) -> SimpleNamespace:
    peers = SimpleNamespace(verifier=Peer(), proposer=Peer(), retriever=Retriever())
    limits = {"ttl_s": 1.0, "stale_s": 10.0, "timeout_s": 5.0, **changes}
    peers.catalogue = Catalogue(peers.verifier, [peers.proposer], [peers.retriever], **limits)
    return peers


def _all(view: module.View) -> tuple[Any, ...]:
    return (view.verifier, *view.proposers, *(indexes[0].number for indexes in view.retrievers))


async def test_a_description_within_its_time_is_not_asked_for_again(clock: Clock) -> None:
    peers = _made()
    first = await peers.catalogue.view()
    clock.now += 0.9
    assert await peers.catalogue.view() == first
    assert (first.fresh, peers.verifier.asked) == (True, 1)


async def test_an_old_description_is_used_while_a_new_one_is_on_its_way(clock: Clock) -> None:
    peers = _made()
    first = await peers.catalogue.view()
    clock.now += 5.0
    peers.verifier.gate.clear()
    for _ in range(3):
        assert await peers.catalogue.view() == replace(first, fresh=False)
    peers.verifier.gate.set()
    while peers.catalogue.verifier == 1:
        await asyncio.sleep(0)
    later = await peers.catalogue.view()
    assert (_all(later), later.fresh) == ((2, 2, 2), True)
    assert peers.verifier.asked == 2
    await peers.catalogue.close()


@pytest.mark.parametrize("seconds", [11.0, 1e6])
async def test_a_description_past_its_time_and_more_is_waited_for(clock: Clock, seconds: float) -> None:
    peers = _made()
    await peers.catalogue.view()
    clock.now += seconds
    later = await peers.catalogue.view()
    assert (_all(later), later.fresh) == ((2, 2, 2), True)


async def test_an_index_with_live_outputs_is_described_anew_before_it_is_used(clock: Clock) -> None:
    peers = _made()
    peers.retriever.live_generation = 3
    await peers.catalogue.view()
    clock.now += 2.0
    later = await peers.catalogue.view()
    assert (_all(later), later.fresh) == ((2, 2, 2), True)


async def test_after_invalidation_a_new_description_is_waited_for(clock: Clock) -> None:
    peers = _made()
    await peers.catalogue.view()
    peers.catalogue.invalidate()
    assert _all(await peers.catalogue.view()) == (2, 2, 2)


async def test_a_fresh_look_is_to_be_had_at_any_time(clock: Clock) -> None:
    peers = _made()
    await peers.catalogue.view()
    clock.now += 2.0
    later = await peers.catalogue.view(fresh=True)
    assert (_all(later), later.fresh) == ((2, 2, 2), True)


async def test_another_tenants_indexes_are_described_before_they_are_used(clock: Clock) -> None:
    peers = _made()
    await peers.catalogue.view("one")
    clock.now += 2.0
    other = await peers.catalogue.view("two")
    assert (peers.retriever.asked, other.fresh) == (2, True)


async def test_closing_gives_up_what_is_asked_for_on_the_side(clock: Clock) -> None:
    peers = _made()
    await peers.catalogue.view()
    clock.now += 2.0
    peers.retriever.gate.clear()
    await peers.catalogue.view()
    await asyncio.sleep(0)
    await peers.catalogue.close()
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
