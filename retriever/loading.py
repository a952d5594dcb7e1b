"""From a release id to something that answers: fetch, check, map. What it returns never changes again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from contracts.errors import DataLoss, FailedPrecondition, InvalidArgument
from retriever.placement import EVERYTHING, Share
from retriever.publish import segment_chunks
from retriever.query import SegmentSet, warm_up
from retriever.release import Binding, Release, SegmentEntry, check_binding, release_from_bytes
from retriever.segment import Segment
from retriever.segment_cache import SegmentCache
from retriever.store import ReleaseReader
from retriever.trie import QueryLimits


@dataclass(frozen=True, slots=True)
class LoadedRelease:
    """A verified release whose segments are mapped. In-flight requests keep it alive by holding it.

    held: the entries of `segments`, in their order: all of the release's, or those of this retriever's share.
    """

    release_id: str
    release: Release
    held: tuple[SegmentEntry, ...]
    segments: SegmentSet

    def visible_to(self, tenant: str) -> bool:
        """Whether the manifest lets the tenant see it."""
        return not self.release.manifest.tenants or tenant in self.release.manifest.tenants

    def check_limits(self, limits: QueryLimits) -> None:
        """Raises InvalidArgument where a query asks for more than the release was made for."""
        manifest = self.release.manifest
        if limits.max_suffix > manifest.context_length:
            raise InvalidArgument("max_suffix", f"{limits.max_suffix} is above the release's {manifest.context_length}")
        if limits.max_continuation > manifest.continuation_length:
            raise InvalidArgument(
                "max_continuation", f"{limits.max_continuation} is above the release's {manifest.continuation_length}"
            )


def load_release(
    store: ReleaseReader,
    cache: SegmentCache,
    release_id: str,
    binding: Binding,
    present: Iterable[LoadedRelease] = (),
    share: Share = EVERYTHING,
) -> LoadedRelease:
    """Fetch what the cache lacks, verify everything, map it, and have the kernels ready. Segments of `present` are shared.
    Only the segments of `share` are fetched.

    Raises NotFound, DataLoss (bytes, sizes or ids that contradict the release), FailedPrecondition (the binding), and
    whatever the store raises.
    """
    warm_up()
    release = release_from_bytes(store.get_release(release_id), release_id)
    check_binding(release.manifest, binding)
    mapped = {
        entry.digest: segment
        for loaded in present
        for entry, segment in zip(loaded.held, loaded.segments.segments, strict=True)
    }
    wanted = share.held([entry.digest for entry in release.segments])
    held = tuple(entry for entry in release.segments if entry.digest in wanted)
    segments = []
    for entry in held:
        segment = mapped.get(entry.digest) or _open(store, cache, entry)
        if segment.tokens != entry.tokens:
            raise DataLoss("release.segments", f"{entry.digest} holds {segment.tokens} tokens, not {entry.tokens}")
        if segment.max_token >= release.manifest.vocabulary_size:
            raise FailedPrecondition(
                "release.vocabulary_size",
                f"segment {entry.digest} has id {segment.max_token}, the vocabulary ends at "
                f"{release.manifest.vocabulary_size - 1}",
            )
        segments.append(segment)
    return LoadedRelease(release_id, release, held, SegmentSet(segments))


def _open(store: ReleaseReader, cache: SegmentCache, entry: SegmentEntry) -> Segment:
    segment = cache.open(entry.digest)
    if segment is None:
        cache.put(entry.digest, segment_chunks(store, entry))
        segment = cache.open(entry.digest)
    if segment is None:
        raise DataLoss("segment_cache", f"{entry.digest} changed on disk right after it was written")
    return segment
