"""From a release id to something that answers: fetch, check, map; and what lies mapped into memory of the process's own.

What either returns never changes again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from contracts.errors import DataLoss, FailedPrecondition, InvalidArgument
from retriever.joining import joinable, joined
from retriever.placement import EVERYTHING, Share
from retriever.publish import segment_chunks
from retriever.query import SegmentSet, warm_up
from retriever.release import Binding, Release, SegmentEntry, check_binding, release_from_bytes
from retriever.segment import Segment
from retriever.segment_cache import SegmentCache
from retriever.store import ReleaseReader
from retriever.trie import QueryLimits


@dataclass(frozen=True, slots=True)
class Part:
    """Where a segment in memory comes from.

    digests: of the release's segments that it holds. depth: of how many codes its order is right, 0 for all of them.
    copied: it lies in memory of the process's own.
    """

    digests: tuple[str, ...]
    depth: int
    copied: bool

    def serves(self, depth: int) -> bool:
        """Whether queries that compare so many codes may be asked."""
        return self.depth == 0 or self.depth >= depth


@dataclass(frozen=True, slots=True)
class LoadedRelease:
    """A verified release in memory or mapped. In-flight requests keep it alive by holding it.

    held: the entries of all of the release's segments, or of those of this retriever's share. parts: what each of
    `segments` holds of them.
    """

    release_id: str
    release: Release
    held: tuple[SegmentEntry, ...]
    parts: tuple[Part, ...]
    segments: SegmentSet

    @property
    def depth(self) -> int:
        """How many codes its queries compare at most."""
        return self.release.manifest.context_length + self.release.manifest.continuation_length

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
    """Fetch what the cache lacks, verify everything, and have the kernels ready. Segments of `present` are shared. Only the
    segments of `share` are fetched. One that has no other beside it is opened as the cache does; several are mapped, since
    `settled` joins them.

    Raises NotFound, DataLoss (bytes, sizes or ids that contradict the release), FailedPrecondition (the binding), and
    whatever the store raises.
    """
    warm_up()
    release = release_from_bytes(store.get_release(release_id), release_id)
    check_binding(release.manifest, binding)
    wanted = share.held([entry.digest for entry in release.segments])
    held = tuple(entry for entry in release.segments if entry.digest in wanted)
    empty = LoadedRelease(release_id, release, held, (), SegmentSet(()))
    shared = _shared(empty, present)
    missing = [e for e in held if not any(e.digest in part.digests for part, _ in shared)]
    copied = cache.copied and len(missing) == 1
    opened = [(Part((e.digest,), 0, copied), _open(store, cache, e, copied=copied)) for e in missing]
    for entry, (_, segment) in zip(missing, opened, strict=True):
        if segment.tokens != entry.tokens:
            raise DataLoss("release.segments", f"{entry.digest} holds {segment.tokens} tokens, not {entry.tokens}")
    for part, segment in (*shared, *opened):
        if segment.max_token >= release.manifest.vocabulary_size:
            raise FailedPrecondition(
                "release.vocabulary_size",
                f"segment {part.digests[0]} has id {segment.max_token}, the vocabulary ends at "
                f"{release.manifest.vocabulary_size - 1}",
            )
    return _of(empty, [*shared, *opened])


def settled(cache: SegmentCache, loaded: LoadedRelease) -> LoadedRelease:
    """The release with its mapped segments in memory of the process's own: those that can be are joined, others copied.

    Every answer is the same. Raises DataLoss where a file has changed since.
    """
    rest = [(p, s) for p, s in zip(loaded.parts, loaded.segments.segments, strict=True) if not p.copied]
    out = [(p, s) for p, s in zip(loaded.parts, loaded.segments.segments, strict=True) if p.copied]
    for group in joinable([segment for _, segment in rest]):
        if len(group) > 1:
            digests = tuple(digest for position in group for digest in rest[position][0].digests)
            out.append((Part(digests, loaded.depth, True), joined([rest[at][1] for at in group], loaded.depth)))
            continue
        part, _ = rest[group[0]]
        segment = cache.open(part.digests[0], copied=True)
        if segment is None:
            raise DataLoss("segment_cache", f"{part.digests[0]} is no longer what was opened")
        out.append((replace(part, copied=True), segment))
    return _of(loaded, out)


def _of(loaded: LoadedRelease, parts: Iterable[tuple[Part, Segment]]) -> LoadedRelease:
    kept = tuple(parts)
    return replace(loaded, parts=tuple(part for part, _ in kept), segments=SegmentSet(segment for _, segment in kept))


def _shared(wanted: LoadedRelease, present: Iterable[LoadedRelease]) -> list[tuple[Part, Segment]]:
    """What is in memory already of the segments that a release holds; what holds most of them first."""
    missing = {entry.digest for entry in wanted.held}
    shared: list[tuple[Part, Segment]] = []
    known = [pair for loaded in present for pair in zip(loaded.parts, loaded.segments.segments, strict=True)]
    for part, segment in sorted(known, key=lambda pair: (-len(pair[0].digests), not pair[0].copied)):
        if missing.issuperset(part.digests) and part.serves(wanted.depth):
            shared.append((part, segment))
            missing.difference_update(part.digests)
    return shared


def _open(store: ReleaseReader, cache: SegmentCache, entry: SegmentEntry, *, copied: bool) -> Segment:
    segment = cache.open(entry.digest, copied=copied)
    if segment is None:
        cache.put(entry.digest, segment_chunks(store, entry))
        segment = cache.open(entry.digest, copied=copied)
    if segment is None:
        raise DataLoss("segment_cache", f"{entry.digest} changed on disk right after it was written")
    return segment
