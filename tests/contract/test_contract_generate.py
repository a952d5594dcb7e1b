"""Generate over all four services: the same text however it is speculated, every refusal by name, the server lives."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from contracts.errors import DraftproofError, FailedPrecondition, InvalidArgument
from contracts.receipt import FinishReason
from contracts.sampling import SamplingPolicy
from orchestrator.events import Final
from orchestrator.request import GenerateRequest
from protos.draftproof.v1 import generate_pb2, generate_pb2_grpc
from services.clients.generate import GenerateClient
from services.local import local_orchestrator
from services.settings import AllSettings, load
from services.status import error_of_call
from tests.contract.tiny_stack import TinyStack
from tests.helpers.fakes import collect

GREEDY = SamplingPolicy(temperature=0.0, max_tokens=40, ignore_eos=True)
REQUEST = GenerateRequest(text="The quick brown fox jumps", policy=GREEDY)
SAMPLED = replace(REQUEST, policy=replace(GREEDY, temperature=0.8, top_p=0.95, seed=11))
CHAT = replace(REQUEST, text=None, messages=({"role": "user", "content": "The quick brown fox"},))


@pytest.fixture
async def client(stack: TinyStack) -> AsyncIterator[GenerateClient]:
    client = GenerateClient(stack.orchestrator.endpoint)
    yield client
    await client.close()


async def generate(source: Any, request: GenerateRequest) -> tuple[list[int], str, Final]:
    chunks, final = await collect(source.generate(request))
    return [t for chunk in chunks for t in chunk.token_ids], "".join(chunk.text for chunk in chunks), final


@pytest.mark.parametrize("request_", [REQUEST, SAMPLED, CHAT], ids=["greedy", "sampled", "chat"])
async def test_the_text_does_not_depend_on_the_speculation(client: GenerateClient, request_: GenerateRequest) -> None:
    off_ids, off_text, off = await generate(client, replace(request_, speculation=False))
    assert off.usage.completion == len(off_ids) == 40
    for sources in (("prompt_lookup",), ("retrieval",), ("prompt_lookup", "retrieval")):
        ids, text, final = await generate(client, replace(request_, sources=sources))
        assert (ids, text) == (off_ids, off_text)
        drafted = {name: getattr(final.usage, name) for name in ("proposed", "accepted", "cached")}
        assert final.usage == replace(off.usage, **drafted)
        # The request before had the same prompt, whose KV stands there still.
        assert final.usage.cached == final.usage.prompt - 1
        assert set(final.certificate.ledger.proposed_by) <= set(sources)
        assert not final.certificate.absent


async def test_in_one_process_it_is_the_same_text(
    client: GenerateClient, stack: TinyStack, tiny_checkpoint_directory: Path, tmp_path: Path
) -> None:
    settings = load(
        AllSettings,
        model=str(tiny_checkpoint_directory),
        dtype="float32",
        threads=1,
        kv_tokens=4096,
        redis_port=urlsplit(stack.redis_url).port,
        cache_dir=tmp_path,
    )
    async with local_orchestrator(settings) as local:
        for request in (REQUEST, SAMPLED, CHAT):
            here = await generate(local, request)
            assert here[:2] == (await generate(client, request))[:2]
            # No Redis is named: the index comes from where the embedded one of `up` would listen.
            assert not here[2].certificate.absent


async def test_the_certificate_and_logprobs(client: GenerateClient) -> None:
    request = replace(REQUEST, policy=replace(GREEDY, logprobs=2))
    chunks, final = await collect(client.generate(request))
    assert all(len(chunk.logprobs) == len(chunk.token_ids) for chunk in chunks if chunk.token_ids)
    assert all(len(item.top_ids) == 2 for chunk in chunks for item in chunk.logprobs)
    assert final.finish is FinishReason.LENGTH
    ledger = final.certificate.ledger
    assert ledger.committed == 40
    assert final.certificate.verifier == "greedy"
    rounds = [chunk.round for chunk in chunks if chunk.round is not None]
    assert len(rounds) == ledger.rounds
    assert sum(item.ledger.total_us for item in rounds) == pytest.approx(ledger.total_us)


BAD: dict[str, tuple[str, generate_pb2.GenerateRequest]] = {
    "no prompt": ("prompt", generate_pb2.GenerateRequest()),
    "empty text": ("text", generate_pb2.GenerateRequest(text="")),
    "empty ids": ("prompt_ids", generate_pb2.GenerateRequest(token_ids=generate_pb2.TokenIds())),
    "empty chat": ("messages", generate_pb2.GenerateRequest(chat=generate_pb2.Chat())),
    "past the context": ("text", generate_pb2.GenerateRequest(text="x" * 600)),
    "past the vocabulary": ("prompt_ids", generate_pb2.GenerateRequest(token_ids={"ids": [70_000]})),
    "unknown source": ("sources", generate_pb2.GenerateRequest(text="x", sources=["oracle"])),
    "unknown source, speculation off": (
        "sources",
        generate_pb2.GenerateRequest(text="x", sources=["oracle"], speculation_off=True),
    ),
    "unknown option": (
        "options.prompt_lookup.max_ngrm",
        generate_pb2.GenerateRequest(text="x", options={"prompt_lookup": {"values": {"max_ngrm": 2}}}),
    ),
    "option beside another": (
        "options.prompt_lookup.max_ngram",
        generate_pb2.GenerateRequest(text="x", options={"prompt_lookup": {"values": {"min_ngram": 3, "max_ngram": 2}}}),
    ),
    "option of an index": (
        "options.retrieval.spec_factor",
        generate_pb2.GenerateRequest(text="x", options={"retrieval": {"values": {"spec_factor": 65}}}),
    ),
    "unknown role": (
        "messages[0].role",
        generate_pb2.GenerateRequest(chat={"messages": [{"role": "banana", "content": "x"}]}),
    ),
    "NaN temperature": (
        "sampling.temperature",
        generate_pb2.GenerateRequest(text="x", sampling={"temperature": float("nan")}),
    ),
    "negative temperature": (
        "sampling.temperature",
        generate_pb2.GenerateRequest(text="x", sampling={"temperature": -1}),
    ),
    "top_p of 0": ("sampling.top_p", generate_pb2.GenerateRequest(text="x", sampling={"top_p": 0})),
    "no tokens": ("sampling.max_tokens", generate_pb2.GenerateRequest(text="x", sampling={"max_tokens": 0})),
    "negative budget": ("node_budget", generate_pb2.GenerateRequest(text="x", node_budget=-1)),
    "huge budget": ("node_budget", generate_pb2.GenerateRequest(text="x", node_budget=2**40)),
    "negative deadline": ("deadline_ms", generate_pb2.GenerateRequest(text="x", deadline_ms=-5)),
    "verifier of a million letters": ("verifier", generate_pb2.GenerateRequest(text="x", verifier="o" * 1_000_000)),
    "source of a million letters": ("sources", generate_pb2.GenerateRequest(text="x", sources=["o" * 1_000_000])),
    "unknown verifier": ("verifier", generate_pb2.GenerateRequest(text="x", verifier="oracle")),
    "unknown exactness": ("exactness", generate_pb2.GenerateRequest(text="x", exactness=7)),  # type: ignore[arg-type]
    "wrong manifest": (
        "expected_manifest_hash",
        generate_pb2.GenerateRequest(text="x", expected_manifest_hash="f" * 64),
    ),
    "a law walker without laws": (
        "sources",
        generate_pb2.GenerateRequest(
            text="x", verifier="rejection", sources=["prompt_lookup"], sampling={"temperature": 1.0}
        ),
    ),
}


@pytest.mark.parametrize("what", BAD)
async def test_bad_input_is_refused_by_name_and_the_server_lives(
    client: GenerateClient, stack: TinyStack, what: str
) -> None:
    field, message = BAD[what]
    async with grpc.aio.insecure_channel(stack.orchestrator.endpoint) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await generate_pb2_grpc.GenerateServiceStub(channel).Generate(message).read()
    assert failed.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION)
    error: DraftproofError = error_of_call(failed.value)
    assert isinstance(error, InvalidArgument | FailedPrecondition)
    assert error.field.startswith(field), error
    assert (await generate(client, replace(REQUEST, policy=replace(GREEDY, max_tokens=2))))[2].usage.completion == 2


async def test_a_client_that_leaves_ends_its_generation(client: GenerateClient) -> None:
    request = replace(REQUEST, policy=replace(GREEDY, max_tokens=400))
    for _ in range(12):
        # More sessions than the KV budget holds side by side: each must be given back when its client leaves.
        async with aclosing(client.generate(request)) as events:
            await anext(events)
    assert (await generate(client, REQUEST))[2].usage.completion == 40


async def test_health_and_reflection_on_every_service(stack: TinyStack) -> None:
    for process in stack.processes:
        async with grpc.aio.insecure_channel(process.endpoint) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            listing = reflection_pb2.ServerReflectionRequest(list_services="")
            stream = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([listing]))
            answer = await stream.read()
            names = {service.name for service in answer.list_services_response.service}
            (own,) = {name for name in names if name.startswith("draftproof.")}
            assert {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"} <= names
            for name in ("", own):
                state = await health.Check(health_pb2.HealthCheckRequest(service=name))
                assert state.status == health_pb2.HealthCheckResponse.SERVING
            by_symbol = reflection_pb2.ServerReflectionRequest(file_containing_symbol=own)
            stream = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([by_symbol]))
            assert (await stream.read()).file_descriptor_response.file_descriptor_proto
