"""Which thread a source's calls run in: one at a time, the event loop's own where a call is quick and the other is idle."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from contracts.capability import SourceDescription
from contracts.errors import InvalidArgument
from contracts.manifest import Manifest
from contracts.ports import ProposeRequest
from contracts.proposal import Proposal
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology
from proposer.host import SourceHost
from proposer.local import LocalProposer
from tests.unit.proposer.rounds import Rounds, session_manifest

PREFIX = [1, 2, 3]
_KINDS = (ProbabilitySemantics.ABSENT, SamplingRelation.DETERMINISTIC_LOOKUP, Topology.SEQUENCE)


class Drafting:
    """A source whose calls with a node budget are quick; those without wait for `go`. calls: (what, thread), in order."""

    runs_inline = False

    def __init__(self, fault: Exception | None = None) -> None:
        self.calls: list[tuple[str, str]] = []
        self.begun, self.go = threading.Event(), threading.Event()
        self._fault = fault

    def describe(self) -> SourceDescription:
        return SourceDescription("drafting", "proposer", "1", *_KINDS)

    def open(self, session_id: str, manifest: Manifest) -> None: ...

    def close(self, session_id: str) -> None: ...

    def is_quick(self, request: ProposeRequest) -> bool:
        return request.node_budget > 0

    def settle(self) -> None:
        self._note("settle")

    def propose(self, request: ProposeRequest) -> Proposal:
        if request.node_budget == 0:
            self.begun.set()
            self.go.wait()
        self._note(f"propose {request.node_budget}")
        if self._fault is not None:
            raise self._fault
        return Proposal("drafting", (), *_KINDS, request.manifest.hash)

    def _note(self, what: str) -> None:
        self.calls.append((what, threading.current_thread().name))


def hosted(source: Drafting) -> tuple[LocalProposer, Callable[[int], ProposeRequest]]:
    """A port with session "s" open, nothing to do in its thread, and what makes a request for so many nodes."""
    host = SourceHost([source])
    manifest = session_manifest(host.describe())
    host.open("s", manifest)
    return LocalProposer(host), lambda nodes: Rounds(manifest).request("drafting", PREFIX, node_budget=nodes)


async def _idle(local: LocalProposer) -> None:
    """Waits for the thread, which takes what it is given in order."""
    await asyncio.wrap_future(local._submit(lambda: None))


async def test_a_quick_call_runs_where_it_was_read_and_others_in_the_thread() -> None:
    source = Drafting()
    source.go.set()
    local, request = hosted(source)
    for nodes in (3, 0, 4):
        await local.propose(request(nodes))
    here = threading.current_thread().name
    assert [what for what, _ in source.calls] == ["propose 3", "propose 0", "propose 4"]
    assert [thread == here for _, thread in source.calls] == [True, False, True]
    local.shutdown()


async def test_a_quick_call_needs_no_turn_of_the_event_loop() -> None:
    local, request = hosted(Drafting())
    call = local.propose(request(3))
    with pytest.raises(StopIteration):
        call.send(None)
    local.shutdown()


async def test_quick_calls_stand_behind_what_waits_or_runs_in_the_thread() -> None:
    source = Drafting()
    local, request = hosted(source)
    calls = [asyncio.create_task(local.propose(request(nodes))) for nodes in (0, 3, 4)]
    await asyncio.to_thread(source.begun.wait)
    await local.close_session("s")
    assert not source.calls
    source.go.set()
    await asyncio.gather(*calls)
    await _idle(local)
    assert [what for what, _ in source.calls] == ["propose 0", "propose 3", "propose 4", "settle"]
    assert len({thread for _, thread in source.calls}) == 1
    local.shutdown()


async def test_a_quick_call_comes_after_the_state_of_closed_sessions_was_given_back() -> None:
    source = Drafting()
    local, request = hosted(source)
    await local.open_session("t", session_manifest([source.describe()]))
    await local.propose(request(3))
    assert [what for what, _ in source.calls] == ["settle", "propose 3"]
    await _idle(local)
    await local.propose(request(4))
    assert source.calls[-1] == ("propose 4", threading.current_thread().name)
    local.shutdown()


async def test_a_call_taken_back_while_it_waits_keeps_no_quick_call_in_the_thread() -> None:
    source = Drafting()
    local, request = hosted(source)
    running = asyncio.create_task(local.propose(request(0)))
    await asyncio.to_thread(source.begun.wait)
    waiting = asyncio.create_task(local.propose(request(3)))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    source.go.set()
    await running
    await local.propose(request(4))
    assert [what for what, _ in source.calls] == ["propose 0", "propose 4"]
    assert source.calls[-1][1] == threading.current_thread().name
    local.shutdown()


async def test_what_a_quick_call_raises_reaches_the_caller_and_ends_nothing() -> None:
    source = Drafting(InvalidArgument("options.x", "no"))
    local, request = hosted(source)
    for _ in range(2):
        with pytest.raises(InvalidArgument, match=r"options\.x"):
            await local.propose(request(3))
    assert {thread for _, thread in source.calls} == {threading.current_thread().name}
    local.shutdown()
