"""One retriever: releases and live outputs answered as one corpus, exactly as the manifest of a round names them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from retriever.library import Library
from retriever.live import LiveLibrary
from retriever.loading import LoadedRelease
from retriever.query import SegmentSet, Tokens
from retriever.segment import Segment
from retriever.trie import QueryLimits, Retrieval, miss

KEPT_SETS = 64


@dataclass(frozen=True, slots=True)
class Answer:
    """A retrieval and what it was made from.

    live_gone: the named live generation cannot be reproduced here; the retrieval is then a miss (never a partial answer).
    """

    release_id: str
    live_generation: int
    live_gone: bool
    retrieval: Retrieval


class Retriever:
    """Answers queries. Thread-safe; holds no state of its own but a small cache of segment sets."""

    def __init__(self, library: Library, live: LiveLibrary | None = None) -> None:
        self.library = library
        self.live = live
        self._sets: OrderedDict[tuple[object, ...], SegmentSet] = OrderedDict()
        self._lock = threading.Lock()

    def advertised(self, index: str, tenant: str = "") -> tuple[str, int]:
        """(release id, live generation) that a manifest sealed now should name. Raises NotFound for an unseen index."""
        loaded = self.library.current(index, tenant)
        return loaded.release_id, self.live.generation(index, tenant) if self.live else 0

    def retrieve(
        self,
        index: str,
        release_id: str,
        contexts: Sequence[Tokens],
        limits: QueryLimits,
        *,
        tenant: str = "",
        live_generation: int = 0,
    ) -> list[Answer]:
        """One answer per context, in order, all from the named release and live generation (0: none).

        Raises NotFound (index), FailedPrecondition (the release is not here), InvalidArgument (a context or limit that is
        wrong or beyond the release's), PermissionDenied (the tenant has no live index here).
        """
        loaded = self.library.acquire(index, release_id, tenant)
        loaded.check_limits(limits)
        extra: tuple[Segment, ...] | None = ()
        if live_generation:
            extra = self.live.segments(index, tenant, live_generation) if self.live else None
        if extra is None:
            return [Answer(release_id, live_generation, True, miss()) for _ in contexts]
        retrievals = self._segments(loaded, extra).retrieve_batch(contexts, limits)
        return [Answer(release_id, live_generation, False, retrieval) for retrieval in retrievals]

    def _segments(self, loaded: LoadedRelease, extra: tuple[Segment, ...]) -> SegmentSet:
        if not extra:
            return loaded.segments
        key = (loaded.release_id, *map(id, extra))
        with self._lock:
            held = self._sets.get(key)
            # The set keeps its segments alive, so an id in a key cannot have been given to another segment.
            if held is None:
                held = self._sets[key] = SegmentSet((*loaded.segments.segments, *extra))
                while len(self._sets) > KEPT_SETS:
                    self._sets.popitem(last=False)
            return held
