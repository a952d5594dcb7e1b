"""A head package served end to end, by processes and inside one: the text is plain decoding's, whatever dies on the way."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from contracts.capability import taps_of
from contracts.errors import FailedPrecondition, NotFound, Unavailable
from contracts.sampling import SamplingPolicy
from orchestrator.events import Chunk, Final
from orchestrator.generate import Orchestrator
from orchestrator.request import GenerateRequest
from orchestrator.settings import OrchestratorSettings
from services.clients.generate import GenerateClient
from services.clients.proposer import ProposerClient
from services.clients.verifier import VerifierClient
from services.local import local_orchestrator
from services.proposer_service.process import build_proposer
from services.settings import AllSettings, ProposerSettings, load
from services.text import CheckpointTokenizer
from tests.contract.processes import ServiceProcess
from tests.contract.tiny_head import TAPS, tiny_head
from tests.contract.tiny_service import tiny_service_checkpoint
from tests.helpers.fakes import collect
from tests.helpers.generation import tokens_of

GREEDY = SamplingPolicy(temperature=0.0, max_tokens=48, ignore_eos=True)
SAMPLED = replace(GREEDY, temperature=0.9, seed=5)
REQUEST = GenerateRequest(text="The quick brown fox. The quick brown", policy=GREEDY, sources=("head",))
WITHIN_S = 60
# Rounds wait for the head, however slow the machine is: only a proposer that is gone fails.
PATIENT = {"propose_deadline_ms": 30_000, "budget": "fixed", "default_sources": "head", "inline_sources": ""}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_service_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def head(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_head(tmp_path_factory.mktemp("head"), checkpoint)


@dataclass
class HeadStack:
    verifier: ServiceProcess
    proposer: ServiceProcess
    orchestrator: ServiceProcess


@pytest.fixture(scope="module", params=["grpc", "link"])
def stack(
    request: pytest.FixtureRequest, checkpoint: Path, head: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HeadStack]:
    directory = tmp_path_factory.mktemp("stack")
    common = {
        "model": checkpoint,
        "cache_dir": directory,
        "dtype": "float32",
        "threads": 1,
        "kv_tokens": 4096,
        "head": head,
        "draft_dtype": "float32",
        "draft_threads": 1,
        "link_dir": tmp_path_factory.mktemp("l") if request.param == "link" else "-",
        **PATIENT,
    }
    peers = [ServiceProcess(name, directory / f"{name}.log", **common) for name in ("verifier", "proposer")]
    endpoints = {f"{peer.name}_endpoint": peer.endpoint for peer in peers}
    orchestrator = ServiceProcess(
        "orchestrator", directory / "orchestrator.log", **common, **endpoints, retriever_endpoint=""
    )
    with ExitStack() as running:
        for process in (*peers, orchestrator):
            process.start(wait=False)
            running.callback(process.__exit__, None, None, None)
        for process in (*peers, orchestrator):
            process.wait_healthy()
        yield HeadStack(peers[0], peers[1], orchestrator)


@pytest.fixture
async def client(stack: HeadStack) -> AsyncIterator[GenerateClient]:
    client = GenerateClient(stack.orchestrator.endpoint)
    yield client
    await client.close()


async def generate(client: GenerateClient, request: GenerateRequest) -> tuple[list[int], Final]:
    chunks, final = await collect(client.generate(request))
    return tokens_of(chunks), final


async def test_the_service_declares_the_heads_taps(stack: HeadStack) -> None:
    client = ProposerClient(stack.proposer.endpoint)
    described = {source.name: source for source in await client.describe()}
    await client.close()
    assert described["head"].taps == TAPS["eagle3"]
    assert taps_of(described.values()) == tuple(sorted(TAPS["eagle3"]))


@pytest.mark.parametrize("policy", [GREEDY, SAMPLED], ids=["greedy", "membership"])
async def test_a_served_head_changes_no_token(client: GenerateClient, policy: SamplingPolicy) -> None:
    request = replace(REQUEST, policy=policy)
    expected, _ = await generate(client, replace(request, speculation=False))
    tokens, final = await generate(client, request)
    assert tokens == expected
    assert final.certificate.failures == {}
    assert final.certificate.absent == {}
    rounds = final.certificate.ledger.rounds
    assert final.certificate.ledger.proposed_by["head"] >= rounds - 1
    # Side by side, sessions draft from their own rows.
    texts = ["one two one two", "The quick brown fox. The quick brown", "aaaaabaaaaab"]
    alone = [(await generate(client, replace(request, text=text)))[0] for text in texts]
    together = await asyncio.gather(*(generate(client, replace(request, text=text)) for text in texts))
    assert [tokens for tokens, _ in together] == alone
    assert all(final.certificate.failures == {} for _, final in together)


async def answering(proposer: ProposerClient) -> None:
    """Asks until the service is back at the other end of this very channel."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                await proposer.describe()
                return
            except Unavailable:
                await asyncio.sleep(0.05)


async def test_a_killed_proposer_recovers_its_rows_within_the_session(stack: HeadStack, checkpoint: Path) -> None:
    """The orchestrator is the test's own, so that its rounds wait while the proposer is away."""
    proposer = ProposerClient(stack.proposer.endpoint, link=stack.proposer.link)
    verifier = VerifierClient(stack.verifier.endpoint, link=stack.verifier.link)
    settings = OrchestratorSettings(propose_deadline_ms=30_000.0)
    orchestrator = Orchestrator(verifier, [proposer], [], CheckpointTokenizer(checkpoint), settings)
    request = replace(REQUEST, policy=replace(GREEDY, max_tokens=64))
    expected, _ = await collect(orchestrator.generate(replace(request, speculation=False)))
    chunks: list[Chunk] = []
    final = None
    async for event in orchestrator.generate(request):
        if isinstance(event, Final):
            final = event
            continue
        chunks.append(event)
        if len(chunks) == 3:
            stack.proposer.kill()
            await asyncio.to_thread(stack.proposer.start)
            await answering(proposer)
    assert final is not None
    assert tokens_of(chunks) == tokens_of(expected)
    offered = [chunk.round.candidates for chunk in chunks if chunk.round is not None]
    assert all(offered[:3])
    # At most the round that met the broken stream went without; the one after its back-off had all rows again.
    assert sum(offered[3:]) > 0
    assert all(offered[12:-1])
    await orchestrator.aclose()
    await proposer.close()
    await verifier.close()


@pytest.mark.parametrize("family", ["eagle3", "medusa"])
async def test_a_head_inside_one_process_changes_no_token(tmp_path: Path, checkpoint: Path, family: str) -> None:
    settings = load(
        AllSettings,
        model=str(checkpoint),
        cache_dir=tmp_path,
        dtype="float32",
        threads=1,
        kv_tokens=2048,
        head=str(tiny_head(tmp_path, checkpoint, family)),
        head_tree="2,1",
        draft_threads=1,
        **PATIENT,
    )
    async with local_orchestrator(settings) as orchestrator:
        for policy in (GREEDY, SAMPLED):
            request = replace(REQUEST, policy=policy)
            expected, _ = await collect(orchestrator.generate(replace(request, speculation=False)))
            chunks, final = await collect(orchestrator.generate(request))
            assert tokens_of(chunks) == tokens_of(expected)
            assert final.certificate.failures == {}
            assert final.certificate.ledger.proposed_by["head"] > 0


def test_a_package_that_does_not_fit_stops_the_service(tmp_path: Path, checkpoint: Path, head: Path) -> None:
    with pytest.raises(NotFound) as missing:
        build_proposer(load(ProposerSettings, model=str(checkpoint), head=str(tmp_path)))
    assert missing.value.field == "DRAFTPROOF_HEAD"
    other = tiny_service_checkpoint(tmp_path)
    (other / "config.json").write_text((other / "config.json").read_text() + "\n")
    with pytest.raises(FailedPrecondition) as refused:
        build_proposer(load(ProposerSettings, model=str(other), head=str(head)))
    assert refused.value.field == "head.target_digest"
