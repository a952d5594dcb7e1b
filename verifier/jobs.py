"""What may be asked of the worker, and the handle on what was asked."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from contracts.hidden import HiddenRows
from contracts.ports import OpenSession, SessionOpened, VerifierDescription, VerifyRequest
from contracts.receipt import Receipt
from verifier.admission import Checked

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Job(Generic[T]):
    """A question whose answer is a T."""


@dataclass(frozen=True)
class Open(Job[SessionOpened]):
    """Admission and prefill."""

    request: OpenSession


@dataclass(frozen=True)
class Verify(Job[Receipt]):
    """One round."""

    request: VerifyRequest


@dataclass(frozen=True)
class GetReceipt(Job[Receipt]):
    """The kept receipt of a round; waits for that session's queued rounds."""

    session_id: str
    round_id: int


@dataclass(frozen=True)
class ExportHidden(Job[HiddenRows]):
    """Hidden rows of committed tokens; waits for that session's queued rounds."""

    session_id: str
    start: int
    stop: int


@dataclass(frozen=True)
class Close(Job[None]):
    """Frees a session, only one still in prefill if `unless_open`; overtakes everything: its KV is free at once."""

    session_id: str
    unless_open: bool = False


@dataclass(frozen=True)
class Describe(Job[VerifierDescription]):
    """The replica's description; overtakes everything."""


@dataclass(eq=False)
class Entry:
    """A submitted job. begun: an open's admission is done or under way. submitted_ns: by the worker's clock. checked: of an
    open, once it is known to be right in itself.
    """

    job: Any
    callback: Callable[[Any], None]
    submitted_ns: int
    begun: bool = False
    checked: Checked | None = None

    @property
    def session_id(self) -> str:
        job = self.job
        if isinstance(job, Verify):
            return job.request.manifest.session_id
        name: str = job.request.session_id if isinstance(job, Open) else job.session_id
        return name


def deliver(entry: Entry, outcome: object) -> None:
    """Answers a job; what its callback raises is its own affair."""
    try:
        entry.callback(outcome)
    except Exception:
        _log.exception("the callback of %s failed", type(entry.job).__name__)
