"""Brings the segments of served releases into memory of the process's own, beside the queries that they answer meanwhile.

A release is served as soon as its files are mapped. Joining them (`joining.py`) reads every suffix, about a second for
10^7 tokens, so it has a thread of its own, and the releases are exchanged for their settled ones when that is done.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from retriever.loading import LoadedRelease, settled
from retriever.segment_cache import SegmentCache

_log = logging.getLogger(__name__)


class Settler:
    """releases: all that are served. exchange: puts a release in the place of another one with the same answers."""

    def __init__(
        self,
        cache: SegmentCache,
        releases: Callable[[], Iterable[LoadedRelease]],
        exchange: Callable[[LoadedRelease, LoadedRelease], None],
    ) -> None:
        self._cache = cache
        self._releases = releases
        self._exchange = exchange
        self._failed: set[str] = set()
        self._wanted = threading.Event()
        self._stopping = threading.Event()

    def start(self) -> None:
        """Settle whatever comes, in a thread, until `stop`."""
        self._stopping.clear()
        threading.Thread(target=self._run, name="segment-joiner", daemon=True).start()

    def wake(self) -> None:
        """There may be something to settle."""
        self._wanted.set()

    def stop(self) -> None:
        """Nothing new is begun. It does not wait: what is being joined is of use to nobody then."""
        self._stopping.set()
        self._wanted.set()

    def settle(self) -> None:
        """Settle all that is served, one release after the other. What fails stays mapped, and is told in the log once."""
        while not self._stopping.is_set() and (loaded := self._next()) is not None:
            try:
                better = settled(self._cache, loaded)
            except Exception:
                # Memory that does not suffice, or a file that went: the mapped segments answer as well, only slower.
                _log.warning("release %s stays mapped", loaded.release_id[:16], exc_info=True)
                self._failed.add(loaded.release_id)
                continue
            self._exchange(loaded, better)

    def _next(self) -> LoadedRelease | None:
        waiting = (r for r in self._releases() if not all(part.copied for part in r.parts))
        return next((r for r in waiting if r.release_id not in self._failed), None)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wanted.wait()
            self._wanted.clear()
            self.settle()
