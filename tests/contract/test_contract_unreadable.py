"""Bytes that are no message, and calls whose answers nobody reads: refused or held back, never an unforeseen error."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from contracts.ports import ProposeRequest
from contracts.proposal import Proposal
from protos.draftproof.v1 import generate_pb2_grpc, proposer_pb2, proposer_pb2_grpc, retriever_pb2_grpc
from services import orchestrator_service, proposer_service, retriever_service
from services.orchestrator_service.servicer import GenerateServicer
from services.proposer_service.servicer import CALLS_AT_ONCE, ProposerServicer
from services.retriever_service.servicer import RetrieverServicer
from services.wire.proposer import PrefixSender
from tests.contract.serving import served
from tests.unit.proposer.rounds import Rounds, session_manifest

PORT: Any = object()
GARBAGE = {"no field": b"\xff\xff\xff\xff\xff", "cut short": b"\x12\x80\x80\x80\x80\x10abc"}
SERVED: dict[str, tuple[str, Any]] = {
    "GenerateService": (
        orchestrator_service.servicer.SERVICE,
        lambda server: generate_pb2_grpc.add_GenerateServiceServicer_to_server(GenerateServicer(PORT), server),
    ),
    "ProposerService": (
        proposer_service.servicer.SERVICE,
        lambda server: proposer_pb2_grpc.add_ProposerServiceServicer_to_server(ProposerServicer(PORT), server),
    ),
    "RetrieverService": (
        retriever_service.servicer.SERVICE,
        lambda server: retriever_pb2_grpc.add_RetrieverServiceServicer_to_server(RetrieverServicer(PORT), server),
    ),
}
METHODS = [
    *(("GenerateService", name) for name in ("Generate",)),
    *(("ProposerService", name) for name in ("Describe", "OpenSession", "Propose", "CloseSession")),
    *(("RetrieverService", name) for name in ("Describe", "Retrieve", "RetrieveBatch", "Part", "Record")),
]


async def refusal(channel: grpc.aio.Channel, path: str, data: bytes) -> grpc.aio.AioRpcError:
    """What a call with these bytes ends with. A stream of one request serves for unary calls too: the wire is the same."""
    method: Any = channel.stream_stream(path)
    call = method(iter([data]), timeout=10)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    return caught.value


@pytest.mark.parametrize(("service", "method"), METHODS)
async def test_bytes_that_are_no_message_are_an_invalid_argument(service: str, method: str) -> None:
    name, add = SERVED[service]
    async with served(name, add) as address, grpc.aio.insecure_channel(address) as channel:
        for data in GARBAGE.values():
            refused = await refusal(channel, f"/{name}/{method}", data)
            assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "no request of this method" in (refused.details() or "")
        health = await refusal(channel, "/grpc.health.v1.Health/Check", GARBAGE["no field"])
        assert health.code() is grpc.StatusCode.INVALID_ARGUMENT


class Slow:
    """A proposer of which every call waits until it is told to answer."""

    def __init__(self) -> None:
        self.under_way = 0
        self.full = asyncio.Event()
        self.go = asyncio.Event()

    async def propose(self, request: ProposeRequest) -> Proposal:
        self.under_way += 1
        if self.under_way == CALLS_AT_ONCE:
            self.full.set()
        await self.go.wait()
        raise RuntimeError("nothing to offer")

    async def close_session(self, session_id: str) -> None:
        """Nothing was opened."""


async def test_a_stream_has_a_bounded_number_of_calls_under_way() -> None:
    port = Slow()

    def add(server: Any) -> None:
        proposer_pb2_grpc.add_ProposerServiceServicer_to_server(ProposerServicer(port), server)  # type: ignore[arg-type]

    request, sender = Rounds(session_manifest([])).request("slow", [1, 2, 3]), PrefixSender()
    calls = [sender.encode(request, call_id=number, traceparent="") for number in range(3 * CALLS_AT_ONCE)]

    async def asked() -> AsyncIterator[proposer_pb2.ProposeRequest]:
        for call in calls:
            yield call

    async with served(proposer_service.servicer.SERVICE, add) as address, grpc.aio.insecure_channel(address) as channel:
        stub = proposer_pb2_grpc.ProposerServiceStub(channel)
        stream = stub.Propose(asked(), timeout=30)
        await port.full.wait()
        for _ in range(20):
            # Other calls come and go while the stream's next requests lie there.
            await stub.CloseSession(proposer_pb2.ProposerServiceCloseSessionRequest(session_id="other"))
        assert port.under_way == CALLS_AT_ONCE
        port.go.set()
        assert {answer.call_id async for answer in stream} == set(range(3 * CALLS_AT_ONCE))
