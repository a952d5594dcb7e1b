"""The front: gRPC in, frames out, and nothing read in between."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from protos.draftproof.v1 import verifier_pb2
from services import loop
from services.link.frames import Kind
from services.server import Listen, ServiceServer, until_told_to_stop
from services.settings import VerifierSettings
from services.status import answering
from services.verifier_service.engine_link import EngineSupervisor

SERVICE: str = verifier_pb2.DESCRIPTOR.services_by_name["VerifierService"].full_name
_UNARY = {
    "Describe": Kind.DESCRIBE,
    "OpenSession": Kind.OPEN,
    "GetReceipt": Kind.GET_RECEIPT,
    "ExportHidden": Kind.EXPORT_HIDDEN,
    "CloseSession": Kind.CLOSE,
}

Ask = Callable[[Kind, bytes], Awaitable[bytes]]


def front_handlers(ask: Ask) -> grpc.GenericRpcHandler:
    """Handlers without serialisers: requests and answers stay the bytes they are."""

    def unary(kind: Kind) -> Any:
        async def handle(request: bytes, context: Any) -> bytes:
            async with answering(context):
                return await ask(kind, request)
            raise AssertionError("answering ends the call")

        return grpc.unary_unary_rpc_method_handler(handle)

    async def verify(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async with answering(context):
            async for request in requests:
                yield await ask(Kind.VERIFY, request)

    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            **{name: unary(kind) for name, kind in _UNARY.items()},
            "Verify": grpc.stream_stream_rpc_method_handler(verify),
        },
    )


def engine_environment(settings: VerifierSettings) -> dict[str, str]:
    """Thread settings, which OpenMP reads once when torch is imported.

    Spinning threads of an idle pool would take the cores from the other services.
    """
    out = {"OMP_WAIT_POLICY": "passive"}
    if settings.threads:
        out["OMP_NUM_THREADS"] = str(settings.threads)
    return out


async def serve(settings: VerifierSettings, *, follow_stdin: bool = False) -> None:
    """Serves until told to stop."""
    listen = Listen(settings.host, settings.verifier_port, settings.drain_ms, settings.grace_ms)
    server = ServiceServer([SERVICE], listen)
    engine = EngineSupervisor(engine_environment(settings), server.set_serving)
    server.grpc_server.add_generic_rpc_handlers((front_handlers(engine.ask),))
    async with engine, server:
        await until_told_to_stop(follow_stdin=follow_stdin)


def run(settings: VerifierSettings, *, follow_stdin: bool = False) -> None:
    """`serve` in a loop of its own."""
    loop.run(serve(settings, follow_stdin=follow_stdin))
