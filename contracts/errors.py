"""The one error hierarchy.

Every error that crosses a service boundary is a `DraftproofError`. It names the offending *field* (a dotted path into
the request, e.g. ``sampling.temperature``) and says what was wrong and what the limit is. `services/status.py` holds the
two-way table between these classes and gRPC status codes; a test keeps that table total.

    DraftproofError
    ├── InvalidArgument      the request itself is wrong, whatever the server's state
    ├── FailedPrecondition   right in form, but this server's state, versions or bindings refuse it
    ├── NotFound             no such session, release, index, receipt
    ├── AlreadyExists        same identity, other content (a round id reused with another payload)
    ├── PermissionDenied     the caller may not
    ├── ResourceExhausted    a budget is spent; `retry_after_ms` says when to come back
    ├── Unavailable          the peer is gone or draining; retrying elsewhere is safe
    ├── DeadlineExceeded     the time given ran out
    ├── Cancelled            the caller went away
    ├── DataLoss             bytes that fail their checksum
    └── Internal             a broken invariant of ours
"""

from __future__ import annotations

from typing import ClassVar


class DraftproofError(Exception):
    """Base of all typed errors. `field` is a dotted path ("" where no single field is to blame)."""

    code: ClassVar[str] = "INTERNAL"

    def __init__(self, field: str, message: str, *, retry_after_ms: int | None = None) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.message = message
        self.retry_after_ms = retry_after_ms


class InvalidArgument(DraftproofError):
    """The request is wrong whatever the server's state."""

    code = "INVALID_ARGUMENT"


class FailedPrecondition(DraftproofError):
    """The request is well formed, but versions, bindings or generations of this server refuse it."""

    code = "FAILED_PRECONDITION"


class NotFound(DraftproofError):
    """The named thing does not exist here."""

    code = "NOT_FOUND"


class AlreadyExists(DraftproofError):
    """The identity is taken by other content."""

    code = "ALREADY_EXISTS"


class PermissionDenied(DraftproofError):
    """The caller may not do or see this."""

    code = "PERMISSION_DENIED"


class ResourceExhausted(DraftproofError):
    """A stated budget is spent."""

    code = "RESOURCE_EXHAUSTED"


class Unavailable(DraftproofError):
    """The peer cannot be reached or is draining."""

    code = "UNAVAILABLE"


class DeadlineExceeded(DraftproofError):
    """The time given ran out."""

    code = "DEADLINE_EXCEEDED"


class Cancelled(DraftproofError):
    """The caller went away."""

    code = "CANCELLED"


class DataLoss(DraftproofError):
    """Stored or received bytes fail their checksum or are cut short."""

    code = "DATA_LOSS"


class Internal(DraftproofError):
    """An invariant of ours does not hold."""

    code = "INTERNAL"


ALL_ERRORS: tuple[type[DraftproofError], ...] = (
    InvalidArgument,
    FailedPrecondition,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
    DeadlineExceeded,
    Cancelled,
    DataLoss,
    Internal,
)
