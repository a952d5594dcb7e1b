"""Channels, and single calls with their deadlines and errors translated."""

from __future__ import annotations

from typing import Any, TypeVar

import grpc

from contracts.errors import Cancelled
from services import telemetry
from services.channel_options import CLIENT_OPTIONS
from services.status import error_of_call

T = TypeVar("T")


def open_channel(endpoint: str) -> grpc.aio.Channel:
    """A lazy channel to host:port: it connects at the first call and reconnects within half a second."""
    return grpc.aio.insecure_channel(endpoint, options=CLIENT_OPTIONS)


async def call(method: Any, request: Any, *, timeout_s: float, metadata: tuple[tuple[str, str], ...] = ()) -> Any:
    """One unary call. Raises contracts' errors; the caller's cancellation passes."""
    header = telemetry.traceparent()
    carried = (*metadata, (telemetry.TRACEPARENT, header)) if header else metadata
    try:
        return await method(request, timeout=timeout_s, metadata=carried)
    except grpc.aio.AioRpcError as error:
        raise error_of_call(error) from error
    except grpc.aio.UsageError as error:
        raise Cancelled("", str(error)) from error
