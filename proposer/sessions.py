"""The sessions a proposer service knows: what each is bound to and the prefix it last saw, bounded in number and age.

A session here is a convenience, never the truth: losing one costs the caller a re-open, so old ones may go at any time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from contracts.errors import AlreadyExists, FailedPrecondition, InvalidArgument
from contracts.frontier import Frontier
from contracts.manifest import Manifest


class PrefixTracker:
    """The published prefix as last seen, with its digest kept running, so that a round hashes its own tokens only."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._seen = b""
        self._frontier = Frontier()

    def digest_of(self, prefix: npt.NDArray[np.int64]) -> str:
        """The frontier digest of `prefix` int64 [L]. Tokens seen before are compared, not hashed again.

        Raises InvalidArgument for token ids outside the vocabulary; the tracker is unchanged then.
        """
        # Bytes, which are compared and copied for less than arrays are.
        seen = np.asarray(prefix, np.int64).tobytes()
        grown = seen.startswith(self._seen)
        fresh = prefix[len(self._frontier) :] if grown else prefix
        if len(fresh):
            tokens = tuple(fresh.tolist())
            if min(tokens) < 0 or max(tokens) >= self._vocab_size:
                raise InvalidArgument("prefix", f"token ids must be within [0, {self._vocab_size})")
            if grown:
                self._frontier.publish(tokens)
            else:
                self._frontier = Frontier(tokens)
            self._seen = seen
        elif not grown:
            self._frontier, self._seen = Frontier(), seen
        return self._frontier.digest


class Session:
    """One open session: its manifest, the sources of this service it binds, the prefix it last saw."""

    def __init__(self, manifest: Manifest, sources: frozenset[str]) -> None:
        self.manifest = manifest
        self.sources = sources
        self.prefix = PrefixTracker(manifest.target.vocab_size)
        self.used_at_s = 0.0


class SessionTable:
    """Open sessions, least recently used first.

    capacity: sessions kept at most. idle_s: a session unused for so long may be dropped. clock: seconds, monotonic.
    """

    def __init__(self, *, capacity: int, idle_s: float, clock: Callable[[], float]) -> None:
        self._capacity = capacity
        self._idle_s = idle_s
        self._clock = clock
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def put(self, session_id: str, session: Session) -> list[tuple[str, Session]]:
        """Adds a session; returns the sessions dropped for it: one it replaces, and what is idle or over the capacity.

        Putting it again under the same manifest changes nothing; a child of the present manifest replaces it. Raises
        AlreadyExists under an unrelated manifest.
        """
        present = self._sessions.get(session_id)
        now = self._clock()
        dropped: list[tuple[str, Session]] = []
        if present is None or present.manifest.hash != session.manifest.hash:
            if present is not None:
                if session.manifest.parent != present.manifest.hash:
                    raise AlreadyExists("session_id", f"{session_id!r} is open under another manifest")
                dropped.append((session_id, present))
            self._sessions[session_id] = session
        self._touch(session_id, now)
        while len(self._sessions) > self._capacity or self._oldest_use() < now - self._idle_s:
            dropped.append(self._sessions.popitem(last=False))
        return dropped

    def get(self, session_id: str) -> Session:
        """The session, now the most recently used. Raises FailedPrecondition if it is not open here."""
        if session_id not in self._sessions:
            raise FailedPrecondition("session_id", f"session {session_id!r} is not open here; open it again")
        self._touch(session_id, self._clock())
        return self._sessions[session_id]

    def remove(self, session_id: str) -> Session | None:
        """Forgets the session and returns it, None if it was not open."""
        return self._sessions.pop(session_id, None)

    def _touch(self, session_id: str, now: float) -> None:
        self._sessions[session_id].used_at_s = now
        self._sessions.move_to_end(session_id)

    def _oldest_use(self) -> float:
        return next(iter(self._sessions.values())).used_at_s
