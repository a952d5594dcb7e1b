"""One source inside the proposer service, and what all sources share: their versions.

Calling order: `open`, any number of `propose`, `close`. Both `open` and `close` may be called from another thread while
`propose` runs and must not wait for it; two `propose` calls of one source never overlap, nor does `settle` overlap them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from contracts.capability import SourceDescription
from contracts.manifest import Manifest, canonical_bytes, sha256_hex
from contracts.ports import ProposeRequest
from contracts.proposal import Proposal

KIND = "proposer"


class Source(Protocol):
    """A maker of proposals. `runs_inline`: a call costs microseconds, so it needs no thread of its own."""

    @property
    def runs_inline(self) -> bool: ...

    def describe(self) -> SourceDescription:
        """What the source declares; constant for its lifetime."""
        ...

    def open(self, session_id: str, manifest: Manifest) -> None:
        """Get ready for a session whose manifest binds this source. Opening twice is harmless."""
        ...

    def propose(self, request: ProposeRequest) -> Proposal:
        """Candidates after `request.prefix`, at most `node_budget`, at most `max_depth` deep, possibly none. A source that
        declares trees may offer a metadata graph, whose nodes have several parents: the host unfolds it.

        A repeated request gives the same nodes. Raises InvalidArgument for options that its description does not hold or
        whose value is out of range, ResourceExhausted when the source's own state has no room.
        """
        ...

    def close(self, session_id: str) -> None:
        """Give the session's state back. Unknown sessions are ignored."""
        ...


@runtime_checkable
class Settles(Protocol):
    """What a source is besides that only notes what is opened and closed: called by the thread that drafts, soon after."""

    def settle(self) -> None:
        """Gives back the state of sessions that were closed."""
        ...


@runtime_checkable
class Quick(Protocol):
    """What a source is besides some of whose calls take single milliseconds, for which handing them to another thread and
    back is much."""

    def is_quick(self, request: ProposeRequest) -> bool:
        """Whether `propose` would be for this request. By whoever would call `propose` next: it may look at its state."""
        ...


def version_of(source: str, settings: Mapping[str, Any]) -> str:
    """The digest of everything that shapes a source's offers: SHA-256 hex of its name and settings in canonical form."""
    return sha256_hex(canonical_bytes({"source": source, "settings": settings}))
