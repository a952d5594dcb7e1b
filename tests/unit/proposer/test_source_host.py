from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from contracts.capability import SourceDescription
from contracts.errors import AlreadyExists, DraftproofError, FailedPrecondition, Internal, InvalidArgument
from contracts.frontier import Frontier
from contracts.manifest import Manifest, SourcePlan
from contracts.ports import ProposeRequest, ProposerPort
from contracts.proposal import Proposal, ProposalNode, check_proposal
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology
from proposer.host import SourceHost
from proposer.local import LocalProposer
from proposer.prompt_lookup import PromptLookup, PromptLookupSettings
from proposer.sessions import PrefixTracker
from tests.unit.proposer.rounds import Rounds, session_manifest

PREFIX = [1, 2, 3, 1]


class Recorder:
    """A source that offers one node and remembers what was asked of it; `spoil` damages its offers."""

    runs_inline = False

    def __init__(self, name: str = "recorder", spoil: Callable[[Proposal], Proposal] = lambda p: p) -> None:
        self.name = name
        self.spoil = spoil
        self.calls: list[tuple[str, str]] = []
        self.threads: set[str] = set()

    def describe(self) -> SourceDescription:
        kinds = (ProbabilitySemantics.ABSENT, SamplingRelation.DETERMINISTIC_LOOKUP, Topology.SEQUENCE)
        return SourceDescription(self.name, "proposer", "1", *kinds)

    def open(self, session_id: str, manifest: Manifest) -> None:
        self.calls.append(("open", session_id))

    def propose(self, request: ProposeRequest) -> Proposal:
        self.calls.append(("propose", request.manifest.session_id))
        self.threads.add(threading.current_thread().name)
        kinds = (ProbabilitySemantics.ABSENT, SamplingRelation.DETERMINISTIC_LOOKUP, Topology.SEQUENCE)
        node = ProposalNode(5, -1, 1, self.name, self.name)
        return self.spoil(Proposal(self.name, (node,), *kinds, request.manifest.hash))

    def close(self, session_id: str) -> None:
        self.calls.append(("close", session_id))


def hosted(*sources: Any, **limits: Any) -> tuple[SourceHost, Rounds]:
    """A host of the sources with session "s" open."""
    host = SourceHost(sources, **limits)
    manifest = session_manifest(host.describe())
    host.open("s", manifest)
    return host, Rounds(manifest)


def refusal(call: Callable[[], object]) -> tuple[type[DraftproofError], str]:
    with pytest.raises(DraftproofError) as caught:
        call()
    return type(caught.value), caught.value.field


def test_a_request_that_fits_is_answered_under_its_round_manifest() -> None:
    host, rounds = hosted(PromptLookup())
    request = rounds.request("prompt_lookup", PREFIX)
    proposal = host.propose(request)
    assert proposal.round_hash == request.manifest.hash
    assert [node.token for node in proposal.nodes] == [2, 3, 1]


class Planner(Recorder):
    """Declares trees and offers a planner's graph: 5 and 6 both lead to 7."""

    def describe(self) -> SourceDescription:
        return replace(super().describe(), topology=Topology.TREE)

    def propose(self, request: ProposeRequest) -> Proposal:
        made = super().propose(request)
        five = made.nodes[0]
        nodes = (five, five._replace(token=6), five._replace(token=7, parent=0, depth=2))
        return replace(made, nodes=nodes, topology=Topology.METADATA_GRAPH, more_parents={2: (1,)})


def test_a_planners_graph_leaves_the_host_as_the_tree_of_its_paths() -> None:
    host, rounds = hosted(Planner())
    proposal = host.propose(rounds.request("recorder", PREFIX))
    check_proposal(proposal, vocab_size=10)
    assert proposal.topology is Topology.TREE
    assert [(node.token, node.parent, node.depth) for node in proposal.nodes] == [
        (5, -1, 1),
        (6, -1, 1),
        (7, 0, 2),
        (7, 1, 2),
    ]
    small = rounds.request("recorder", PREFIX, node_budget=3)
    assert refusal(lambda: host.propose(small)) == (Internal, "proposal.nodes")


def test_several_sources_are_described_in_order_and_answer_for_themselves() -> None:
    host, rounds = hosted(PromptLookup(), Recorder())
    assert [description.name for description in host.describe()] == ["prompt_lookup", "recorder"]
    assert host.propose(rounds.request("recorder", PREFIX)).source == "recorder"


def test_two_sources_of_one_name_are_refused() -> None:
    assert refusal(lambda: SourceHost([Recorder(), Recorder()])) == (InvalidArgument, "sources")


def test_an_unknown_source_is_named() -> None:
    host, rounds = hosted(PromptLookup())
    with pytest.raises(InvalidArgument, match=r"source: unknown source 'ngram'; known: prompt_lookup"):
        host.propose(rounds.request("ngram", PREFIX))


def test_a_session_not_open_here_must_be_opened_again() -> None:
    _, rounds = hosted(PromptLookup())
    restarted = SourceHost([PromptLookup()])
    request = rounds.request("prompt_lookup", PREFIX)
    assert refusal(lambda: restarted.propose(request)) == (FailedPrecondition, "session_id")
    restarted.open("s", rounds.manifest)
    assert restarted.propose(request).nodes


def test_a_source_that_the_session_does_not_bind_is_refused() -> None:
    host = SourceHost([PromptLookup(), Recorder()])
    manifest = session_manifest([PromptLookup().describe()])
    host.open("s", manifest)
    request = Rounds(manifest).request("recorder", PREFIX)
    assert refusal(lambda: host.propose(request)) == (FailedPrecondition, "manifest.sources")


def test_another_version_of_a_source_is_refused_when_the_session_opens() -> None:
    manifest = session_manifest([PromptLookup(PromptLookupSettings(max_ngram=5)).describe()])
    host = SourceHost([PromptLookup()])
    assert refusal(lambda: host.open("s", manifest)) == (FailedPrecondition, "manifest.sources")
    assert host.open_sessions == 0


def test_sources_of_other_services_in_the_manifest_are_left_alone() -> None:
    manifest = session_manifest([replace(PromptLookup().describe(), name="rest", kind="retriever")])
    SourceHost([PromptLookup()]).open("s", manifest)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"manifest_hash": "0" * 64}, (FailedPrecondition, "manifest.manifest_hash")),
        ({"prefix_len": 5}, (InvalidArgument, "prefix")),
        ({"frontier": Frontier([1, 2, 3, 2]).digest}, (InvalidArgument, "prefix")),
        ({"prefix": [1, 2, 97]}, (InvalidArgument, "prefix")),
        ({"prefix": [1, -2, 1]}, (InvalidArgument, "prefix")),
        ({"prefix": [], "frontier": Frontier([]).digest}, (InvalidArgument, "prefix")),
        ({"node_budget": -1}, (InvalidArgument, "node_budget")),
        ({"node_budget": 65}, (InvalidArgument, "node_budget")),
        ({"max_depth": -1}, (InvalidArgument, "max_depth")),
        ({"max_depth": 33}, (InvalidArgument, "max_depth")),
        ({"plan": (SourcePlan("prompt_lookup", 4, 8),)}, (InvalidArgument, "node_budget")),
        ({"plan": (SourcePlan("prompt_lookup", 8, 4),)}, (InvalidArgument, "max_depth")),
    ],
)
def test_what_does_not_fit_the_round_is_refused_by_field_and_the_session_lives(
    change: dict[str, Any], expected: tuple[type[DraftproofError], str]
) -> None:
    host, rounds = hosted(PromptLookup())
    prefix = change.pop("prefix", PREFIX)
    digest = change.pop("frontier", Frontier([abs(token) for token in prefix]).digest)
    request = replace(
        rounds.request("prompt_lookup", [1], frontier=digest, prefix_len=len(prefix)), prefix=np.array(prefix)
    )
    fields = {name: change.pop(name) for name in ("node_budget", "max_depth") if name in change}
    request = replace(request, manifest=replace(request.manifest, **change), **fields)
    assert refusal(lambda: host.propose(request)) == expected
    assert host.propose(rounds.request("prompt_lookup", PREFIX)).nodes


@pytest.mark.parametrize(
    "spoil",
    [
        lambda p: replace(p, round_hash="0" * 64),
        lambda p: replace(p, semantics=ProbabilitySemantics.SCORE_ONLY),
        lambda p: replace(p, nodes=p.nodes * 9),
        lambda p: replace(p, nodes=(p.nodes[0]._replace(depth=9),)),
    ],
)
def test_a_source_that_breaks_its_word_is_an_internal_error(spoil: Callable[[Proposal], Proposal]) -> None:
    host, rounds = hosted(Recorder(spoil=spoil))
    with pytest.raises(Internal):
        host.propose(rounds.request("recorder", PREFIX))


def test_opening_twice_changes_nothing_and_another_manifest_is_refused() -> None:
    host, rounds = hosted(Recorder())
    host.open("s", rounds.manifest)
    assert host.open_sessions == 1
    other = session_manifest(host.describe(), node_budget=9)
    assert refusal(lambda: host.open("s", other)) == (AlreadyExists, "session_id")
    assert host.propose(rounds.request("recorder", PREFIX)).nodes


def test_a_child_manifest_takes_the_session_over() -> None:
    recorder = Recorder()
    host, rounds = hosted(recorder)
    child = session_manifest(host.describe(), node_budget=9, parent=rounds.manifest.hash)
    host.open("s", child)
    assert recorder.calls == [("open", "s"), ("close", "s"), ("open", "s")]
    assert host.propose(Rounds(child).request("recorder", PREFIX)).nodes
    request = rounds.request("recorder", PREFIX)
    assert refusal(lambda: host.propose(request)) == (FailedPrecondition, "manifest.manifest_hash")


def test_closing_gives_the_state_back_and_unknown_sessions_are_ignored() -> None:
    recorder = Recorder()
    host, _ = hosted(recorder)
    host.close("s")
    host.close("s")
    assert recorder.calls == [("open", "s"), ("close", "s")]
    assert host.open_sessions == 0


def test_the_least_recently_used_session_makes_room() -> None:
    recorder = Recorder()
    host, rounds = hosted(recorder, max_sessions=2)
    host.open("t", rounds.manifest)
    host.propose(rounds.request("recorder", PREFIX))
    host.open("u", rounds.manifest)
    assert ("close", "t") in recorder.calls
    assert host.propose(rounds.request("recorder", PREFIX)).nodes


def test_an_idle_session_is_dropped_when_another_opens() -> None:
    now = [0.0]
    recorder = Recorder()
    host, rounds = hosted(recorder, idle_s=10.0, clock=lambda: now[0])
    now[0] = 9.0
    host.open("t", rounds.manifest)
    now[0] = 11.0
    host.open("u", rounds.manifest)
    assert [call for call in recorder.calls if call[0] == "close"] == [("close", "s")]


def test_a_prefix_is_hashed_once_however_rounds_split_it() -> None:
    tracker = PrefixTracker(97)
    ids = np.arange(60, dtype=np.int64)
    for length in (10, 11, 11, 30, 20, 60, 1):
        assert tracker.digest_of(ids[:length]) == Frontier(ids[:length]).digest
    diverged = ids.copy()
    diverged[5] = 90
    assert tracker.digest_of(diverged) == Frontier(diverged).digest
    assert tracker.digest_of(ids[:0]) == Frontier().digest


def test_a_caller_that_reuses_its_buffer_does_not_deceive_the_tracker() -> None:
    tracker = PrefixTracker(97)
    buffer = np.arange(10, dtype=np.int64)
    tracker.digest_of(buffer)
    buffer[0] = 50
    assert tracker.digest_of(buffer) == Frontier(buffer).digest


async def test_the_local_port_answers_cheap_sources_inline_and_others_in_one_thread() -> None:
    recorder = Recorder()
    host = SourceHost([PromptLookup(), recorder])
    local = LocalProposer(host)
    port: ProposerPort = local
    rounds = Rounds(session_manifest(await port.describe()))
    await port.open_session("s", rounds.manifest)
    assert (await port.propose(rounds.request("prompt_lookup", PREFIX))).nodes
    await asyncio.gather(*(port.propose(rounds.request("recorder", PREFIX)) for _ in range(8)))
    assert len(recorder.threads) == 1
    assert threading.current_thread().name not in recorder.threads
    await port.close_session("s")
    assert host.open_sessions == 0
    local.shutdown()


async def test_errors_of_the_worker_thread_reach_the_caller() -> None:
    def fail(_: Proposal) -> Proposal:
        raise InvalidArgument("options.x", "no")

    host, rounds = hosted(Recorder(spoil=fail))
    local = LocalProposer(host)
    with pytest.raises(InvalidArgument, match=r"options\.x"):
        await local.propose(rounds.request("recorder", PREFIX))
    local.shutdown()
