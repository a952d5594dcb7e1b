"""A draft model behind the proposer service: the target as its own draft, over gRPC and over links."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.errors import FailedPrecondition
from contracts.sampling import SamplingPolicy
from orchestrator.request import GenerateRequest
from services.clients.generate import GenerateClient
from tests.contract.tiny_stack import TinyStack, tiny_stack
from tests.helpers.fakes import collect

POLICY = SamplingPolicy(temperature=0.0, max_tokens=36, ignore_eos=True)
REQUEST = GenerateRequest(
    text="The quick brown fox", policy=POLICY, sources=("draft_model",), node_budget=5, max_depth=5
)
SAMPLED = replace(REQUEST, policy=replace(POLICY, temperature=0.8, top_k=20, seed=3))


@pytest.fixture(scope="module", params=["grpc", "link"])
def drafting(
    request: pytest.FixtureRequest, tiny_checkpoint_directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TinyStack]:
    links = tmp_path_factory.mktemp("l") if request.param == "link" else "-"
    settings = {
        "draft_model": tiny_checkpoint_directory,
        "draft_dtype": "float32",
        "draft_threads": 1,
        "draft_kv_tokens": 4096,
        "budget": "fixed",
        "propose_deadline_ms": 60_000,
        "link_dir": links,
    }
    with tiny_stack(tiny_checkpoint_directory, tmp_path_factory.mktemp("stack"), **settings) as running:
        yield running


@pytest.fixture
async def client(drafting: TinyStack) -> AsyncIterator[GenerateClient]:
    client = GenerateClient(drafting.orchestrator.endpoint)
    yield client
    await client.close()


@pytest.mark.parametrize("request_", [REQUEST, replace(SAMPLED, verifier="rejection")], ids=["greedy", "rejection"])
async def test_the_target_as_its_own_draft_is_accepted_whole(client: GenerateClient, request_: GenerateRequest) -> None:
    _, final = await collect(client.generate(request_))
    ledger = final.certificate.ledger
    assert ledger.committed == 36
    assert ledger.accepted == ledger.candidates == ledger.proposed_by["draft_model"] == 30
    assert ledger.rounds == 6
    assert not final.certificate.failures


@pytest.mark.parametrize("request_", [REQUEST, SAMPLED], ids=["greedy", "membership"])
async def test_the_text_is_that_without_a_draft(client: GenerateClient, request_: GenerateRequest) -> None:
    plain, _ = await collect(client.generate(replace(request_, sources=())))
    drafted, final = await collect(client.generate(request_))
    assert [t for c in drafted for t in c.token_ids] == [t for c in plain for t in c.token_ids]
    assert final.usage.proposed > 0


async def test_a_verifier_without_its_relation_is_refused_before_any_work(client: GenerateClient) -> None:
    with pytest.raises(FailedPrecondition) as refused:
        await collect(client.generate(replace(SAMPLED, verifier="gumbel_coupled")))
    assert refused.value.field == "sources.relation"


async def test_a_draft_beside_a_source_without_a_law_is_refused_at_admission(client: GenerateClient) -> None:
    request = replace(SAMPLED, sources=("draft_model", "prompt_lookup"), verifier="rejection")
    with pytest.raises(FailedPrecondition) as refused:
        await collect(client.generate(request))
    assert refused.value.field.startswith("sources")
