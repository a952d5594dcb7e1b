"""Bytes that are no message are refused like any other wrong request: INVALID_ARGUMENT, where gRPC would say UNKNOWN.

A deserialiser cannot end a call itself: what it raises becomes UNKNOWN in unary calls and an unforeseen error within
streams. So it hands on what is wrong, and the handler behind it refuses before the servicer sees anything.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from contracts.errors import InvalidArgument
from services.status import abort


class RefusesUnreadable(grpc.aio.ServerInterceptor):  # type: ignore[misc,unused-ignore]
    """Stands before every servicer. Handlers that take bytes as they are are left alone."""

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None:
            return handler
        made = {
            (False, False): (grpc.unary_unary_rpc_method_handler, handler.unary_unary),
            (False, True): (grpc.unary_stream_rpc_method_handler, handler.unary_stream),
            (True, False): (grpc.stream_unary_rpc_method_handler, handler.stream_unary),
            (True, True): (grpc.stream_stream_rpc_method_handler, handler.stream_stream),
        }
        make, behaviour = made[handler.request_streaming, handler.response_streaming]
        guarded = _stream(behaviour) if handler.request_streaming else _unary(behaviour)
        return make(guarded, _or_refusal(handler.request_deserializer), handler.response_serializer)


def _or_refusal(deserialise: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        try:
            return deserialise(data)
        except DecodeError as error:
            return InvalidArgument("", f"{len(data)} bytes are no request of this method: {error}")

    return read


def _unary(behaviour: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    if inspect.isasyncgenfunction(behaviour):

        async def answers(request: Any, context: Any) -> AsyncIterator[Any]:
            if isinstance(request, InvalidArgument):
                await abort(context, request)
            async with aclosing(behaviour(request, context)) as made:
                async for answer in made:
                    yield answer

        return answers

    async def answer(request: Any, context: Any) -> Any:
        if isinstance(request, InvalidArgument):
            await abort(context, request)
        return await behaviour(request, context)

    return answer


def _stream(behaviour: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    if inspect.isasyncgenfunction(behaviour):

        async def answers(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            async with aclosing(behaviour(_Readable(requests), context)) as made:
                async for answer in made:
                    yield answer

        return answers

    async def answer(requests: AsyncIterator[Any], context: Any) -> Any:
        return await behaviour(_Readable(requests), context)

    return answer


class _Readable:
    """The same requests; raises InvalidArgument at the first that could not be read."""

    def __init__(self, requests: AsyncIterator[Any]) -> None:
        self._requests = aiter(requests)

    def __aiter__(self) -> _Readable:
        return self

    async def __anext__(self) -> Any:
        request = await anext(self._requests)
        if isinstance(request, InvalidArgument):
            raise request
        return request
