"""Unforeseen exceptions as typed errors, and the way back to a session's last good state."""

from __future__ import annotations

import logging

from contracts.errors import DraftproofError, Internal
from models.backend import Backend
from verifier.session import Session

_log = logging.getLogger(__name__)


def typed(error: Exception) -> DraftproofError:
    """The error itself if it is one of ours, else Internal with the error as its cause."""
    if isinstance(error, DraftproofError):
        return error
    _log.error("unforeseen %s in the verifier", type(error).__name__, exc_info=error)
    internal = Internal("", f"{type(error).__name__}: {error}")
    internal.__cause__ = error
    return internal


def restore(backend: Backend, session: Session) -> None:
    """Takes the session's KV back to its published prefix, whether the fault came before, in or after a commit.

    Rows below the committed length are never overwritten by a commit, so cutting back to it is enough. A session whose
    KV cannot be restored is marked lost: better gone, and prefilled again elsewhere, than wrong.
    """
    try:
        backend.truncate(session.slot, session.prefix_len - 1)
    except Exception:
        _log.exception("the KV of session %s cannot be restored", session.request.session_id)
        session.lost = True
