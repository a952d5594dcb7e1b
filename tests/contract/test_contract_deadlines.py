"""A call's deadline over gRPC, in front of an engine that stops answering."""

import asyncio
from typing import Any

import grpc
import pytest

from orchestrator.generate import Orchestrator
from orchestrator.settings import OrchestratorSettings
from protos.draftproof.v1 import generate_pb2, generate_pb2_grpc, receipt_pb2
from services.orchestrator_service.servicer import GenerateServicer
from tests.contract.serving import served
from tests.helpers.fakes import FakeTokenizer, FakeVerifier, wait_for

SERVICE = generate_pb2.DESCRIPTOR.services_by_name["GenerateService"].full_name
MESSAGE = generate_pb2.GenerateRequest(
    text="abab", speculation_off=True, sampling={"temperature": 0, "max_tokens": 40, "ignore_eos": True}
)
ROUNDS = 3


async def answers(
    verifier: FakeVerifier, *, timeout_s: float, message: generate_pb2.GenerateRequest = MESSAGE
) -> list[generate_pb2.GenerateResponse]:
    orchestrator = Orchestrator(verifier, [], [], FakeTokenizer(), OrchestratorSettings())

    def add(server: Any) -> None:
        generate_pb2_grpc.add_GenerateServiceServicer_to_server(GenerateServicer(orchestrator), server)

    async with served(SERVICE, add) as endpoint, grpc.aio.insecure_channel(endpoint) as channel:
        stub = generate_pb2_grpc.GenerateServiceStub(channel)
        return [answer async for answer in stub.Generate(message, timeout=timeout_s)]


def published(answers: list[generate_pb2.GenerateResponse]) -> list[int]:
    return [token for answer in answers if answer.HasField("published") for token in answer.published.token_ids]


async def test_a_call_deadline_ends_it_with_what_there_is_and_frees_its_session() -> None:
    whole = published(await answers(FakeVerifier(), timeout_s=60.0))
    stuck = FakeVerifier()
    stuck.before.extend([*[None] * ROUNDS, wait_for(asyncio.Event())])
    cut = await answers(stuck, timeout_s=4.0)
    finished = cut[-1].finished
    assert finished.reason == receipt_pb2.FINISH_REASON_DEADLINE
    assert published(cut) == whole[:ROUNDS]
    assert finished.usage.completion_tokens == ROUNDS
    assert stuck.sessions == {}
    assert len(stuck.closed) == 1


@pytest.mark.parametrize("deadline_ms", [-1, 0, 86_400_001, 2**63 - 1])
async def test_a_deadline_outside_its_limits_is_refused_beside_a_deadline_of_the_call(deadline_ms: int) -> None:
    message = generate_pb2.GenerateRequest(text="abab", deadline_ms=deadline_ms)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await answers(FakeVerifier(), timeout_s=30.0, message=message)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (refused.value.details() or "").startswith("deadline_ms: ")
