"""The proposer port's contract, on the fake, in process and over gRPC."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from contracts.errors import FailedPrecondition, InvalidArgument
from contracts.manifest import Manifest, TargetIdentity
from contracts.ports import ProposerPort
from contracts.proposal import check_proposal
from protos.draftproof.v1.proposer_pb2_grpc import add_ProposerServiceServicer_to_server
from services.clients.proposer import ProposerClient
from services.link.server import LinkServer
from services.proposer_service.process import build_proposer
from services.proposer_service.servicer import SERVICE, ProposerServicer
from services.proposer_service.stream import ProposeLink
from services.settings import ProposerSettings, load
from tests.contract.scenario import manifest_of, propose_request
from tests.contract.serving import served
from tests.helpers.fakes import VOCAB, FakeProposer

TARGET = TargetIdentity("m", "c", "t", VOCAB, 512, "float32", "cpu", "here")
REPEATING = [10, 11, 12, 13, 14, 10, 11]


@pytest.fixture(params=["fake", "local", "grpc", "grpc over the fake", "link"])
async def port(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ProposerPort]:
    if request.param == "fake":
        yield FakeProposer()
        return
    if request.param == "grpc over the fake":
        behind: ProposerPort = FakeProposer()
        local = None
    else:
        behind = local = build_proposer(load(ProposerSettings, lookup_min_ngram=2))
    if request.param == "local":
        yield behind
    else:
        servicer = ProposerServicer(behind)
        link = tmp_path / "s.sock" if request.param == "link" else None
        async with (
            LinkServer(link, lambda: ProposeLink(behind)),
            served(SERVICE, lambda server: add_ProposerServiceServicer_to_server(servicer, server)) as endpoint,
        ):
            client = ProposerClient(endpoint, link=link)
            yield client
            await client.close()
    if local is not None:
        local.shutdown()


async def opened(port: ProposerPort, session_id: str = "s") -> Manifest:
    manifest = manifest_of(TARGET, sources=await port.describe())
    await port.open_session(session_id, manifest)
    return manifest


async def test_describe(port: ProposerPort) -> None:
    described = list(await port.describe())
    assert [source.name for source in described] == ["prompt_lookup"]
    assert list(await port.describe()) == described


async def test_an_offer_copies_what_followed(port: ProposerPort) -> None:
    manifest = await opened(port)
    request = propose_request(manifest, REPEATING)
    proposal = await port.propose(request)
    check_proposal(proposal, vocab_size=VOCAB, round_hash=request.manifest.hash)
    assert [node.token for node in proposal.nodes][:3] == [12, 13, 14]
    assert len(proposal.nodes) <= request.node_budget
    assert (await port.propose(request)).nodes == proposal.nodes


async def test_the_budget_binds(port: ProposerPort) -> None:
    manifest = await opened(port)
    proposal = await port.propose(propose_request(manifest, REPEATING, node_budget=2))
    assert [node.token for node in proposal.nodes] == [12, 13]
    proposal = await port.propose(propose_request(manifest, REPEATING, max_depth=1, round_id=1))
    assert [node.token for node in proposal.nodes] == [12]


async def test_a_prefix_that_grows_shrinks_and_changes(port: ProposerPort) -> None:
    manifest = await opened(port)
    prefixes = [
        REPEATING,
        [*REPEATING, 12],
        [*REPEATING, 12, 13, 14],
        REPEATING,
        [20, 21, 22, 20, 21],
        [*REPEATING, 99, 10, 11],
    ]
    for number, prefix in enumerate(prefixes):
        proposal = await port.propose(propose_request(manifest, prefix, round_id=number))
        fresh = FakeProposer()
        fresh.sessions["s"] = manifest
        expected = await fresh.propose(propose_request(manifest, prefix, round_id=number))
        assert [n.token for n in proposal.nodes][:1] == [n.token for n in expected.nodes][:1]


async def test_refusals_name_the_field_and_the_session_goes_on(port: ProposerPort) -> None:
    manifest = await opened(port)
    with pytest.raises(InvalidArgument) as refused:
        await port.propose(propose_request(manifest, REPEATING, source="oracle"))
    assert refused.value.field == "source"
    with pytest.raises(FailedPrecondition) as closed:
        await port.propose(propose_request(manifest, REPEATING, session_id="never opened"))
    assert closed.value.field == "session_id"
    other = replace(manifest, max_depth=3)
    with pytest.raises(FailedPrecondition) as sealed:
        await port.propose(propose_request(other, REPEATING))
    assert sealed.value.field == "manifest.manifest_hash"
    assert (await port.propose(propose_request(manifest, REPEATING))).nodes


async def test_open_and_close_may_repeat(port: ProposerPort) -> None:
    manifest = await opened(port)
    await port.open_session("s", manifest)
    await port.close_session("s")
    await port.close_session("s")
    with pytest.raises(FailedPrecondition):
        await port.propose(propose_request(manifest, REPEATING))
    await port.open_session("s", manifest)
    assert (await port.propose(propose_request(manifest, REPEATING))).nodes


async def test_sessions_side_by_side(port: ProposerPort) -> None:
    manifest = await opened(port, "a")
    await port.open_session("b", manifest)
    one, two = await asyncio.gather(
        port.propose(propose_request(manifest, REPEATING, session_id="a")),
        port.propose(propose_request(manifest, [5, 6, 7, 5, 6], session_id="b")),
    )
    assert (one.nodes[0].token, two.nodes[0].token) == (12, 7)


async def test_a_long_prefix_arrives_whole(port: ProposerPort) -> None:
    manifest = await opened(port)
    rng = np.random.default_rng(3)
    prefix = [*rng.integers(0, 100, size=400).tolist(), 200, 201, 202, 203, 200, 201]
    assert [n.token for n in (await port.propose(propose_request(manifest, prefix))).nodes][:2] == [202, 203]
