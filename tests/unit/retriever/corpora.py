"""Small releases, manifests and stores that the retriever's tests share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retriever.publish import activate, publish
from retriever.release import Release, ReleaseManifest, SegmentEntry
from retriever.segment_format import build_segment, segment_digest, segment_from_bytes
from retriever.store import ReleaseStore

# M7.7, section 0x04C.
TRACE = [4, 5, 6, 9, 4, 5, 6, 10, 11]

FIELDS: dict[str, Any] = {
    "corpus_snapshot": "corpus-1",
    "licence_policy": "PSF-2.0",
    "exclusion_sha256": "",
    "tokenizer_sha256": "tokenizer-1",
    "normalisation": "NFC",
    "vocabulary_size": 49_152,
    "context_length": 32,
    "continuation_length": 16,
    "builder_commit": "0" * 40,
    "target_family": "toy",
}


def manifest(**changes: Any) -> ReleaseManifest:
    """A valid manifest with some fields changed."""
    return ReleaseManifest(**{**FIELDS, **changes})


def release_and_bytes(*segments: Sequence[Sequence[int]], **changes: Any) -> tuple[Release, dict[str, bytes]]:
    """A release with one segment for each argument (a list of documents), and the segments' bytes by digest."""
    built = [build_segment(documents) for documents in segments]
    entries = tuple(SegmentEntry(segment_digest(data), len(data), segment_from_bytes(data).tokens) for data in built)
    return Release(manifest(**changes), entries), {segment_digest(data): data for data in built}


def put_up(store: ReleaseStore, index: str, *segments: Sequence[Sequence[int]], **changes: Any) -> str:
    """Publish and activate such a release; its id."""
    release, sources = release_and_bytes(*segments, **changes)
    publish(store, release, sources)
    activate(store, index, release.release_id)
    return release.release_id
