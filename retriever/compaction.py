"""Folding a live generation into a release, so that it outlives the stream and stops growing it."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from contracts.errors import FailedPrecondition, PermissionDenied
from retriever.live import LiveLibrary
from retriever.loading import LoadedRelease
from retriever.publish import activate, publish
from retriever.release import Release, SegmentEntry
from retriever.segment_format import build_segment, segment_digest
from retriever.store import Alias, ReleaseStore


def compact(
    store: ReleaseStore,
    live: LiveLibrary,
    index: str,
    tenant: str,
    base: LoadedRelease,
    generation: int,
) -> Alias:
    """Publish `base` plus the live generation as a new release of the index, then retire what it holds from the stream.

    The manifest is the base's, with a corpus snapshot that names both. Between the two steps a round may name the new
    release and a generation that still holds the same outputs; it counts them twice, reproducibly.
    Raises PermissionDenied where outputs would reach tenants that the live policy keeps them from (the release must be
    visible to its readers only), FailedPrecondition (generation gone or empty, or the index moved on from `base`), and what
    the store raises.
    """
    visible = frozenset(base.release.manifest.tenants)
    strangers = visible - live.readers(index, tenant)
    if not visible or strangers:
        to = f"to {', '.join(sorted(strangers))}" if visible else "to everybody"
        raise PermissionDenied("live", f"{index} shows its release {to}, the live policy keeps outputs from them")
    present = store.aliases().get(index)
    if present is None or present.release_id != base.release_id:
        raise FailedPrecondition("release_id", f"{index} does not point to {base.release_id} any more")
    tokenizer = base.release.manifest.tokenizer_sha256
    documents = live.documents(index, tenant, generation, tokenizer=tokenizer)
    if not documents:
        raise FailedPrecondition("live_generation", f"generation {generation} of {index} holds no outputs")
    data = build_segment(documents)
    digest = segment_digest(data)
    entry = SegmentEntry(digest, len(data), sum(np.asarray(tokens).size for tokens in documents))
    manifest = base.release.manifest
    snapshot = hashlib.sha256(f"{manifest.corpus_snapshot}+live:{digest}".encode()).hexdigest()
    release = Release(replace(manifest, corpus_snapshot=snapshot), (*base.release.segments, entry))
    publish(store, release, {digest: data})
    alias = activate(store, index, release.release_id, present.version)
    live.retire(index, tenant, generation, tokenizer=tokenizer)
    return alias
