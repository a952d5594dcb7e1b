"""Folding a live generation into a release, so that it outlives the stream and stops growing it.

Outputs are new material, so what the release says of its material must hold for them too: they pass the exclusion that the
release's documents have passed, or nothing is folded, and the licence names their terms beside the documents'.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from contracts.errors import FailedPrecondition, PermissionDenied
from retriever.exclusion import NO_EXCLUSION, Exclusion, Verdict
from retriever.live import LiveLibrary
from retriever.loading import LoadedRelease
from retriever.publish import SegmentSource, activate, publish
from retriever.release import Release, ReleaseManifest, SegmentEntry
from retriever.segment_format import build_segment, segment_digest
from retriever.store import Alias, ReleaseStore
from retriever.trie import Tokens

LIVE_LICENCE = "; live outputs: "


@dataclass(frozen=True, slots=True)
class OutputRules:
    """What outputs must satisfy to become part of a release.

    exclusion: the one that the release is bound to. decode: token ids to the text that it judges. licence: the terms under
    which the outputs are used. builder_commit: who folds them in.
    """

    decode: Callable[[Sequence[int]], str]
    exclusion: Exclusion = NO_EXCLUSION
    licence: str = "unstated"
    builder_commit: str = ""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What the index points to now, and what became of the generation's outputs."""

    alias: Alias
    outputs: int
    excluded_exact: int
    excluded_overlap: int


def compact(
    store: ReleaseStore,
    live: LiveLibrary,
    index: str,
    tenant: str,
    base: LoadedRelease,
    generation: int,
    rules: OutputRules,
    sources: Mapping[str, SegmentSource] | None = None,
) -> Compacted:
    """Publish `base` plus the live generation as a new release of the index, then retire what it holds from the stream.

    The manifest is the base's, with a corpus snapshot, licence and builder that name both. Outputs that the exclusion drops
    are counted, and retired with the others. Between the two steps a round may name the new release and a generation that
    still holds the same outputs; it counts them twice, reproducibly. sources: the base's segments, as far as they are at
    hand, to mend the store's copies with.
    Raises PermissionDenied where outputs would reach tenants that the live policy keeps them from (the release must be
    visible to its readers only), FailedPrecondition (generation gone or empty, or all of it excluded; the index moved on
    from `base`; another exclusion than the base's), and what the store raises.
    """
    visible = frozenset(base.release.manifest.tenants)
    strangers = visible - live.readers(index, tenant)
    if not visible or strangers:
        to = f"to {', '.join(sorted(strangers))}" if visible else "to everybody"
        raise PermissionDenied("live", f"{index} shows its release {to}, the live policy keeps outputs from them")
    present = store.aliases().get(index)
    if present is None or present.release_id != base.release_id:
        raise FailedPrecondition("release_id", f"{index} does not point to {base.release_id} any more")
    _check_exclusion(base.release.manifest, rules.exclusion)
    tokenizer = base.release.manifest.tokenizer_sha256
    documents = live.documents(index, tenant, generation, tokenizer=tokenizer)
    if not documents:
        raise FailedPrecondition("live_generation", f"generation {generation} of {index} holds no outputs")
    verdicts = [rules.exclusion.verdict(_text(rules.decode, tokens)) for tokens in documents]
    counts = Counter(verdicts)
    kept = [tokens for tokens, verdict in zip(documents, verdicts, strict=True) if verdict is Verdict.KEEP]
    if not kept:
        raise FailedPrecondition("exclusion", f"drops all outputs of generation {generation} of {index}")
    data = build_segment(kept)
    entry = SegmentEntry(segment_digest(data), len(data), sum(np.asarray(tokens).size for tokens in kept))
    release = Release(_manifest(base.release.manifest, entry, rules), (*base.release.segments, entry))
    publish(store, release, {**(sources or {}), entry.digest: data})
    alias = activate(store, index, release.release_id, present.version)
    live.retire(index, tenant, generation, tokenizer=tokenizer)
    return Compacted(alias, len(kept), counts[Verdict.EXACT], counts[Verdict.OVERLAP])


def _check_exclusion(manifest: ReleaseManifest, exclusion: Exclusion) -> None:
    bound, given = manifest.exclusion_sha256, exclusion.sha256
    if bound == given:
        return
    told = f"the release excludes what {bound[:16]} names" if bound else "the release excludes nothing"
    raise FailedPrecondition(
        "exclusion",
        f"{told}, {given[:16] or 'nothing'} was given: the outputs must pass the same texts and n-gram length",
    )


def _text(decode: Callable[[Sequence[int]], str], tokens: Tokens) -> str:
    return decode(np.asarray(tokens).tolist())


def _manifest(base: ReleaseManifest, entry: SegmentEntry, rules: OutputRules) -> ReleaseManifest:
    terms = LIVE_LICENCE + rules.licence
    builders = base.builder_commit.split(", ")
    if rules.builder_commit and rules.builder_commit not in builders:
        builders.append(rules.builder_commit)
    return replace(
        base,
        corpus_snapshot=hashlib.sha256(f"{base.corpus_snapshot}+live:{entry.digest}".encode()).hexdigest(),
        licence_policy=base.licence_policy if terms in base.licence_policy else base.licence_policy + terms,
        builder_commit=", ".join(builders),
    )
