"""Publishing a release through a store, pointing an index at it, and reading its segments back, checked."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from contracts.errors import DataLoss, FailedPrecondition, InvalidArgument, NotFound
from retriever.release import Release, SegmentEntry
from retriever.store import MAX_CHUNK_BYTES, MIN_CHUNK_BYTES, Alias, ReleaseReader, ReleaseStore, SegmentRecord

DEFAULT_CHUNK_BYTES = 2 << 20
LEASE_MS = 10 * 60 * 1000

SegmentSource = bytes | Path


def publish(
    store: ReleaseStore,
    release: Release,
    sources: Mapping[str, SegmentSource],
    *,
    checked: Collection[str] = (),
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> str:
    """Bring the whole release into the store, read it back, and only then record it; returns the release id.

    Segments already in the store are read back too, and sent again only where that fails: so a repeat after a crash goes on
    where it stopped, and a repeat over a damaged store mends it. No index points at the release yet: that is `activate`.
    sources: segment bytes, or the file holding them, by digest. checked: segments that the caller has just read back itself
    (`in_store`). progress: (bytes stored, bytes in all).
    Raises InvalidArgument (chunk size, a missing source), DataLoss (a source differs from its digest, or the store's copy
    does and there is no source).
    """
    if not MIN_CHUNK_BYTES <= chunk_bytes <= MAX_CHUNK_BYTES:
        raise InvalidArgument("chunk_bytes", f"{chunk_bytes} is not in [{MIN_CHUNK_BYTES}, {MAX_CHUNK_BYTES}]")
    digests = [entry.digest for entry in release.segments]
    publication = uuid.uuid4().hex
    store.lease(publication, {*digests, release.release_id}, LEASE_MS)
    stored, total = 0, sum(entry.size_bytes for entry in release.segments)
    for entry in release.segments:
        source = sources.get(entry.digest)
        if entry.digest in checked or in_store(store, entry, complain=source is None):
            stored += entry.size_bytes
            if progress:
                progress(stored, total)
            continue
        if source is None:
            raise InvalidArgument("sources", f"neither the store nor the caller has segment {entry.digest}")
        for size in send_segment(store, publication, entry, source, chunk_bytes):
            stored += size
            if progress:
                progress(stored, total)
    store.put_release(release.release_id, release.canonical_bytes(), digests)
    store.end_lease(publication)
    return release.release_id


def in_store(store: ReleaseReader, entry: SegmentEntry, *, complain: bool = False) -> bool:
    """Whether the store holds the segment, every chunk of it sound. It reads them all.

    complain: of a segment that is sealed but damaged, raise DataLoss or NotFound instead.
    """
    try:
        if store.segment(entry.digest) is None:
            return False
        whole = hashlib.sha256()
        for chunk in segment_chunks(store, entry):
            whole.update(chunk)
        if whole.hexdigest() != entry.digest:
            raise DataLoss("segment.digest", f"the store's chunks of {entry.digest} make up another segment")
    except (DataLoss, NotFound):
        if complain:
            raise
        return False
    return True


def send_segment(
    store: ReleaseStore,
    publication: str,
    entry: SegmentEntry,
    source: SegmentSource,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
) -> Iterator[int]:
    """Bring one segment into the store under the publication's lease, read it back and seal it; yields bytes as they go.

    Raises DataLoss (the source or the store's copy differs from the digest), FailedPrecondition (collected meanwhile).
    """
    digests, whole, size = [], hashlib.sha256(), 0
    for index, chunk in enumerate(_chunks(source, chunk_bytes)):
        # The lease comes first: a chunk that nobody holds may be collected as soon as it is there.
        store.lease(publication, {entry.digest}, LEASE_MS)
        store.put_chunk(entry.digest, index, chunk)
        whole.update(chunk)
        size += len(chunk)
        digests.append(hashlib.sha256(chunk).hexdigest())
        yield len(chunk)
    if whole.hexdigest() != entry.digest or size != entry.size_bytes:
        raise DataLoss("sources", f"the source of {entry.digest} holds {size} bytes of {whole.hexdigest()}")
    for index, digest in enumerate(digests):
        _checked_chunk(store, entry.digest, index, digest)
    store.seal_segment(SegmentRecord(entry.digest, size, tuple(digests)))
    if store.segment(entry.digest) is None:
        raise FailedPrecondition("segment", f"{entry.digest} was collected while it was being published")


def activate(store: ReleaseStore, index: str, release_id: str, expected_version: int | None = None) -> Alias:
    """Point the index at the release; retrievers follow. expected_version None: whatever is there now.

    Raises NotFound, or FailedPrecondition where somebody else changed the index meanwhile.
    """
    if expected_version is None:
        present = store.aliases().get(index)
        if present and present.release_id == release_id:
            return present
        expected_version = present.version if present else 0
    return store.set_alias(index, release_id, expected_version)


def rollback(store: ReleaseStore, index: str, steps: int = 1) -> Alias:
    """Point the index at what it pointed to `steps` changes ago: a new version, so that retrievers follow it too.

    Raises NotFound where the history is not that long or the old release was collected.
    """
    history = store.history(index)
    if not 1 <= steps < len(history):
        raise NotFound("steps", f"{index} has {max(0, len(history) - 1)} earlier releases, asked for {steps}")
    return store.set_alias(index, history[steps].release_id, history[0].version)


def segment_chunks(store: ReleaseReader, entry: SegmentEntry) -> Iterator[bytes]:
    """The chunks of a stored segment, each checked before it is handed on.

    Raises NotFound (segment or chunk missing), DataLoss (a chunk is cut, changed, or the sizes disagree).
    """
    record = store.segment(entry.digest)
    if record is None:
        raise NotFound("release.segments", f"the store has no segment {entry.digest}")
    if record.size_bytes != entry.size_bytes:
        raise DataLoss("segment.size_bytes", f"the store says {record.size_bytes}, the release {entry.size_bytes}")
    for index, digest in enumerate(record.chunk_sha256):
        yield _checked_chunk(store, entry.digest, index, digest)


def _checked_chunk(store: ReleaseReader, segment: str, index: int, digest: str) -> bytes:
    data = store.get_chunk(segment, index)
    if hashlib.sha256(data).hexdigest() != digest:
        raise DataLoss("chunk", f"chunk {index} of segment {segment} ({len(data)} bytes) fails its sha256")
    return data


def _chunks(source: SegmentSource, chunk_bytes: int) -> Iterator[bytes]:
    if isinstance(source, bytes):
        for at in range(0, len(source), chunk_bytes):
            yield source[at : at + chunk_bytes]
        return
    with source.open("rb") as file:
        while chunk := file.read(chunk_bytes):
            yield chunk
