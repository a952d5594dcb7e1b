"""ProposerService over a proposer port. Questions of one stream run side by side: no source waits for a slower one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from contracts.ports import ProposeRequest, ProposerPort
from protos.draftproof.v1 import proposer_pb2 as pb
from protos.draftproof.v1 import proposer_pb2_grpc
from services.proposer_service.stream import answer_proposal, refused
from services.status import answering
from services.wire.capability import encode_source
from services.wire.manifest import decode_manifest
from services.wire.proposer import PrefixReceiver
from services.wire.verifier import session_id_of

# Calls of one stream that may be under way, those whose answers nobody reads included.
CALLS_AT_ONCE = 32

SERVICE: str = pb.DESCRIPTOR.services_by_name["ProposerService"].full_name


class ProposerServicer(proposer_pb2_grpc.ProposerServiceServicer):
    """Serves `port`."""

    def __init__(self, port: ProposerPort) -> None:
        self._port = port

    async def Describe(
        self, request: pb.ProposerServiceDescribeRequest, context: Any
    ) -> pb.ProposerServiceDescribeResponse:
        async with answering(context):
            sources = await self._port.describe()
            return pb.ProposerServiceDescribeResponse(sources=[encode_source(source) for source in sources])

    async def OpenSession(
        self, request: pb.ProposerServiceOpenSessionRequest, context: Any
    ) -> pb.ProposerServiceOpenSessionResponse:
        async with answering(context):
            await self._port.open_session(session_id_of(request.session_id), decode_manifest(request.manifest))
            return pb.ProposerServiceOpenSessionResponse()

    async def CloseSession(
        self, request: pb.ProposerServiceCloseSessionRequest, context: Any
    ) -> pb.ProposerServiceCloseSessionResponse:
        async with answering(context):
            await self._port.close_session(session_id_of(request.session_id))
            return pb.ProposerServiceCloseSessionResponse()

    async def Propose(  # type: ignore[override]
        self, requests: AsyncIterator[pb.ProposeRequest], context: Any
    ) -> None:
        """The prefix is followed in the order of arrival; answers leave as they are ready."""
        async with answering(context), asyncio.TaskGroup() as running:
            receiver, sending = PrefixReceiver(), asyncio.Lock()
            room = asyncio.Semaphore(CALLS_AT_ONCE)
            async for message in requests:
                try:
                    asked = receiver.decode(message)
                except Exception as error:
                    await _send(context, sending, refused(message.call_id, error))
                else:
                    await room.acquire()
                    task = running.create_task(self._answer(message, asked, context, sending))
                    task.add_done_callback(lambda _: room.release())

    async def _answer(
        self, message: pb.ProposeRequest, asked: ProposeRequest, context: Any, sending: asyncio.Lock
    ) -> None:
        await _send(context, sending, await answer_proposal(self._port, message, asked))


async def _send(context: Any, sending: asyncio.Lock, answer: pb.ProposeResponse) -> None:
    async with sending:
        await context.write(answer)
