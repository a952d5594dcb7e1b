"""The one two-way table between contracts' errors and gRPC status, and how an error travels.

An error leaves a server as status code, message and an ErrorInfo in the trailing status details (google.rpc.Status, as
grpc-status lays it down), or as a bare ErrorInfo inside a stream that goes on. Clients see contracts' errors only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NoReturn, Protocol

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import status_pb2  # type: ignore[import-untyped]

from contracts import errors
from contracts.errors import DraftproofError
from protos.draftproof.v1.errors_pb2 import ErrorInfo

DETAILS_KEY = "grpc-status-details-bin"

STATUS_OF: dict[type[DraftproofError], grpc.StatusCode] = {
    kind: grpc.StatusCode[kind.code] for kind in errors.ALL_ERRORS
}
# Codes that no class of ours sends: what the transport or a stranger's server may answer with.
ERROR_OF: dict[grpc.StatusCode, type[DraftproofError]] = {
    grpc.StatusCode.UNKNOWN: errors.Internal,
    grpc.StatusCode.UNIMPLEMENTED: errors.FailedPrecondition,
    grpc.StatusCode.ABORTED: errors.Unavailable,
    grpc.StatusCode.OUT_OF_RANGE: errors.InvalidArgument,
    grpc.StatusCode.UNAUTHENTICATED: errors.PermissionDenied,
    **{code: kind for kind, code in STATUS_OF.items()},
}

# Errors quote what they refuse, and travel in trailing metadata: past 8 KiB of it, percent signs and base64 included, the
# client's transport drops the error and makes up one of its own.
MAX_FIELD_BYTES, MAX_TEXT_BYTES = 200, 800

_log = logging.getLogger(__name__)


def info_of(error: DraftproofError) -> ErrorInfo:
    """The error as a message, long fields and texts clipped."""
    return ErrorInfo(
        code=type(error).code,
        field=_clipped(error.field, MAX_FIELD_BYTES),
        message=_clipped(error.message, MAX_TEXT_BYTES),
        retry_after_ms=error.retry_after_ms,
    )


def _clipped(text: str, limit: int) -> str:
    encoded = text.encode(errors="replace")
    return encoded.decode() if len(encoded) <= limit else encoded[: limit - 3].decode(errors="ignore") + "…"


def error_of_info(info: ErrorInfo) -> DraftproofError:
    """The error in a message; an unknown code is Internal."""
    code = grpc.StatusCode.__members__.get(info.code)
    kind = ERROR_OF.get(code, errors.Internal) if code else errors.Internal
    retry_after_ms = info.retry_after_ms if info.HasField("retry_after_ms") else None
    return kind(info.field, info.message, retry_after_ms=retry_after_ms)


def _text_of(error: DraftproofError) -> str:
    return _clipped(str(error), MAX_FIELD_BYTES + MAX_TEXT_BYTES)


def status_details(error: DraftproofError) -> bytes:
    """google.rpc.Status, serialised, for the trailing metadata."""
    detail = any_pb2.Any()
    detail.Pack(info_of(error))
    number: int = STATUS_OF[type(error)].value[0]
    status = status_pb2.Status(code=number, message=_text_of(error), details=[detail])
    return bytes(status.SerializeToString())


def error_of_call(failed: grpc.aio.AioRpcError) -> DraftproofError:
    """What a failed call means: its ErrorInfo where it carries one, else its bare status."""
    for key, value in failed.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            info = _info_in(value)
            if info is not None:
                return error_of_info(info)
    return ERROR_OF.get(failed.code(), errors.Internal)("", failed.details() or failed.code().name.lower())


def _info_in(details: bytes) -> ErrorInfo | None:
    try:
        status = status_pb2.Status.FromString(details)
        for detail in status.details:
            info = ErrorInfo()
            if detail.Unpack(info):
                return info
    except DecodeError:
        _log.warning("a peer sent status details that cannot be read")
    return None


class Aborting(Protocol):
    """The part of a servicer's context that ends a call."""

    async def abort(
        self, code: grpc.StatusCode, details: str = ..., trailing_metadata: Sequence[tuple[str, Any]] = ...
    ) -> NoReturn: ...


async def abort(context: Aborting, error: DraftproofError) -> NoReturn:
    """Ends the call with the error."""
    details = ((DETAILS_KEY, status_details(error)),)
    await context.abort(STATUS_OF[type(error)], _text_of(error), trailing_metadata=details)


def typed(error: Exception) -> DraftproofError:
    """The error itself, or Internal for what nobody foresaw; that is logged, and its text stays here."""
    if isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        # What a task group makes of the one error that ended it.
        return typed(error.exceptions[0])
    if isinstance(error, DraftproofError):
        return error
    _log.error("unforeseen", exc_info=error)
    return errors.Internal("", f"unforeseen {type(error).__name__}; see this service's log")


@asynccontextmanager
async def answering(context: Aborting) -> AsyncIterator[None]:
    """Within it every error ends the call with its status; cancellation passes."""
    try:
        yield
    except (asyncio.CancelledError, grpc.aio.AbortError):
        raise
    except Exception as error:
        await abort(context, typed(error))
