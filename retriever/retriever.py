"""One retriever: releases and live outputs answered as one corpus, exactly as the manifest of a round names them."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from contracts.errors import FailedPrecondition, InvalidArgument, PermissionDenied
from contracts.retrieval import IndexDescription, PublishedOutput, Retrieval, RetrievalQuery
from retriever.answering import answer, check_question
from retriever.corpus import Corpus, limits_of
from retriever.library import Library
from retriever.live import LiveLibrary
from retriever.loading import LoadedRelease
from retriever.merging import Question, Reply
from retriever.query import SegmentSet
from retriever.segment import Segment
from retriever.trie import QueryLimits, Tokens, miss

KEPT_SETS = 64


class Retriever:
    """Answers queries. Thread-safe; holds no state of its own but a small cache of segment sets."""

    def __init__(self, library: Library, live: LiveLibrary | None = None) -> None:
        self.library = library
        self.live = live
        self._whole = library.share.whole
        self._sets: OrderedDict[tuple[object, ...], SegmentSet] = OrderedDict()
        self._lock = threading.Lock()

    def describe(self, tenant: str = "") -> list[IndexDescription]:
        """The indexes that the tenant may see, with what a manifest sealed now should name."""
        share = self.library.share
        described = []
        for index in sorted(self.library.visible_indexes(tenant)):
            loaded = self.library.current(index, tenant)
            manifest = loaded.release.manifest
            live = self.live if share.holds_live(index) else None
            described.append(
                IndexDescription(
                    index=index,
                    release=loaded.release_id,
                    tokenizer_digest=manifest.tokenizer_sha256,
                    vocab_size=manifest.vocabulary_size,
                    max_match=manifest.context_length,
                    max_depth=manifest.continuation_length,
                    tokens=loaded.release.tokens,
                    live_generation=live.generation(index, tenant, tokenizer=manifest.tokenizer_sha256) if live else 0,
                    records=live.records(index, tenant) if live else False,
                    group=share.group,
                    groups=share.groups,
                )
            )
        return described

    def retrieve(self, corpus: Corpus, contexts: Sequence[Tokens], limits: QueryLimits) -> list[Retrieval]:
        """One answer per context, in order, all from the named release and live generation.

        Raises NotFound (index), FailedPrecondition (the release is not here, or only a part of it is), InvalidArgument (a
        context or limit that is wrong or beyond the release's), PermissionDenied (the tenant has no live index here).
        """
        segments = self._asked(corpus, limits)
        answers = [miss() for _ in contexts] if segments is None else segments.retrieve_batch(contexts, limits)
        return [
            replace(
                found,
                release=corpus.release,
                live_generation=corpus.live_generation,
                live_gone=segments is None,
            )
            for found in answers
        ]

    def answer(self, query: RetrievalQuery, started: float) -> Retrieval:
        """`retrieve` for one query of the port, in fewer steps; compute_us counts from `started` (time.perf_counter)."""
        limits = limits_of(query)
        segments = self._asked(query, limits)
        if segments is None:
            return Retrieval(release=query.release, live_generation=query.live_generation, live_gone=True)
        found = segments.search(query.suffix, limits)
        return Retrieval(*found, (time.perf_counter() - started) * 1e6, query.release, query.live_generation)

    def part(self, corpus: Corpus, question: Question) -> Reply | None:
        """This group's reply in the merging dialogue (`merging.py`); None: the live generation is gone.

        Raises what `retrieve` raises, and ResourceExhausted where the reply would be larger than the question allows.
        """
        loaded = self.library.acquire(corpus.index, corpus.release, corpus.tenant)
        check_question(question, loaded)
        segments = self._segments(corpus, loaded)
        return None if segments is None else answer(question, segments)

    def behind(self, corpus: Corpus) -> bool:
        """Whether the named live generation was not read here: another replica may have read on."""
        if not corpus.live_generation or self.live is None or not self.live.records(corpus.index, corpus.tenant):
            return False
        loaded = self.library.acquire(corpus.index, corpus.release, corpus.tenant)
        tokenizer = loaded.release.manifest.tokenizer_sha256
        return not self.live.holds(corpus.index, corpus.tenant, corpus.live_generation, tokenizer=tokenizer)

    def record(self, output: PublishedOutput) -> int:
        """Take a published output into the index's live stream; its generation.

        Raises NotFound (index), PermissionDenied (no policy for this tenant), InvalidArgument (tokens), and what the store
        raises.
        """
        loaded = self.library.current(output.index, output.tenant)
        if self.live is None:
            raise PermissionDenied("live", f"no live policy of index {output.index!r} names tenant {output.tenant!r}")
        manifest = loaded.release.manifest
        if len(output.tokens) and int(np.max(output.tokens)) >= manifest.vocabulary_size:
            raise InvalidArgument("tokens", f"token ids lie below the vocabulary size {manifest.vocabulary_size}")
        return self.live.publish(
            output.index, output.tenant, output.entry, output.tokens, tokenizer=manifest.tokenizer_sha256
        )

    def _asked(self, corpus: Corpus | RetrievalQuery, limits: QueryLimits) -> SegmentSet | None:
        """What answers a question to the whole corpus, None where its live generation is gone; raises as `retrieve` does."""
        if not self._whole:
            share = self.library.share
            raise FailedPrecondition("group", f"group {share.group} holds a part; ask all of {', '.join(share.groups)}")
        loaded = self.library.acquire(corpus.index, corpus.release, corpus.tenant)
        loaded.check_limits(limits)
        return self._segments(corpus, loaded) if corpus.live_generation else loaded.segments

    def _segments(self, corpus: Corpus | RetrievalQuery, loaded: LoadedRelease) -> SegmentSet | None:
        if not corpus.live_generation or not self.library.share.holds_live(corpus.index):
            return loaded.segments
        if self.live is None:
            return None
        extra = self.live.segments(
            corpus.index,
            corpus.tenant,
            corpus.live_generation,
            tokenizer=loaded.release.manifest.tokenizer_sha256,
        )
        return None if extra is None else self._together(loaded, extra)

    def _together(self, loaded: LoadedRelease, extra: tuple[Segment, ...]) -> SegmentSet:
        if not extra:
            return loaded.segments
        together = (*loaded.segments.segments, *extra)
        key = tuple(map(id, together))
        with self._lock:
            held = self._sets.get(key)
            # The set keeps its segments alive, so an id in a key cannot have been given to another segment.
            if held is None:
                held = self._sets[key] = SegmentSet(together)
                while len(self._sets) > KEPT_SETS:
                    self._sets.popitem(last=False)
            return held
