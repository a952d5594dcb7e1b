"""From documents to a release: units in, segments out, each on its own, the same bytes whoever builds them.

`build_unit` is a function of the unit's documents, the recipe and the exclusion; so units may be built by threads here or
by tasks on other machines, and one built before (same input digest) is taken as it is. Memory: `workers` units at a time.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from contracts.errors import InvalidArgument
from retriever.build_notes import BuildNotes
from retriever.documents import Document, Gap
from retriever.exclusion import NO_EXCLUSION, Exclusion, Verdict
from retriever.release import KEY_ENCODING, Release, ReleaseManifest, SegmentEntry
from retriever.segment_cache import SegmentCache
from retriever.segment_format import MAGIC, build_segment, segment_digest
from retriever.sources import Unit, read_unit
from retriever.unit_result import BuildReport, UnitResult, build_report

Tokenize = Callable[[list[str]], Sequence[Sequence[int]]]
BATCH_CHARACTERS = 1 << 20
# What `build_unit` makes of its input. Raise it whenever equal inputs would give other bytes: units that were built under
# another number are built anew.
RULES = 2


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a build fixes beside its documents; the fields are those of `release.ReleaseManifest`."""

    licence_policy: str
    tokenizer_sha256: str
    normalisation: str
    vocabulary_size: int
    context_length: int
    continuation_length: int
    builder_commit: str
    target_family: str
    tenants: tuple[str, ...] = ()


def input_digest(documents: Sequence[Document], recipe: Recipe, exclusion: Exclusion) -> str:
    """sha256 over everything that determines the unit's segment: documents, recipe, exclusion, and how it is built."""
    digest = hashlib.sha256()
    built = f"rules {RULES}, {MAGIC.decode()}, {KEY_ENCODING}"
    for part in (built, recipe.tokenizer_sha256, recipe.normalisation, str(recipe.vocabulary_size), exclusion.sha256):
        digest.update(f"{len(part)}:{part};".encode())
    for document in documents:
        data = b"" if isinstance(document, Gap) else document.encode()
        digest.update(f"{document.value if isinstance(document, Gap) else len(data)}:".encode())
        digest.update(data)
    return digest.hexdigest()


def build_unit(
    documents: Sequence[Document], tokenize: Tokenize, recipe: Recipe, exclusion: Exclusion = NO_EXCLUSION
) -> tuple[UnitResult, bytes]:
    """The unit's segment and its account. Pure, given a tokenizer that is.

    Raises InvalidArgument where the tokenizer yields an id outside the vocabulary, or another number of rows than texts.
    """
    counts: Counter[Verdict | Gap] = Counter()
    kept: list[str] = []
    for document in documents:
        if isinstance(document, Gap):
            counts[document] += 1
            continue
        verdict = exclusion.verdict(document)
        counts[verdict] += 1
        if verdict is Verdict.KEEP:
            kept.append(document)
    rows = [np.asarray(row, np.int64) for batch in _batches(kept) for row in _tokenized(batch, tokenize)]
    highest = max((int(row.max()) for row in rows if row.size), default=-1)
    if highest >= recipe.vocabulary_size:
        raise InvalidArgument(
            "tokenize", f"id {highest} is outside the vocabulary of {recipe.vocabulary_size} (added tokens counted in)"
        )
    data = build_segment(rows)
    entry = SegmentEntry(segment_digest(data), len(data), sum(row.size for row in rows))
    result = UnitResult(
        input_sha256=input_digest(documents, recipe, exclusion),
        segment=entry,
        documents=len(kept),
        excluded_exact=counts[Verdict.EXACT],
        excluded_overlap=counts[Verdict.OVERLAP],
        unreadable=counts[Gap.UNREADABLE],
        absent=counts[Gap.ABSENT],
    )
    return result, data


def release_of(results: Sequence[UnitResult], recipe: Recipe, exclusion: Exclusion = NO_EXCLUSION) -> Release:
    """The release of all units' results, in the plan's order; units left without a token add no segment."""
    snapshot = hashlib.sha256("".join(result.input_sha256 for result in results).encode()).hexdigest()
    manifest = ReleaseManifest(corpus_snapshot=snapshot, exclusion_sha256=exclusion.sha256, **asdict(recipe))
    return Release(manifest, tuple(result.segment for result in results if result.segment.tokens))


def build(
    units: Sequence[Unit],
    tokenize: Tokenize,
    recipe: Recipe,
    directory: Path,
    *,
    exclusion: Exclusion = NO_EXCLUSION,
    workers: int = 1,
    progress: Callable[[int, int, int], None] | None = None,
) -> BuildReport:
    """Build every unit into the directory and describe the release. A unit whose result is there already is not built.

    workers: units at work side by side (a tokenizer that releases the GIL, as Rust ones do, makes them parallel).
    progress: called with (units done, units in all, tokens so far), from the calling thread.
    """
    cache = SegmentCache(directory)
    results: dict[int, UnitResult] = {}
    reused = 0
    for number, (result, known) in _in_parallel(
        len(units), workers, lambda n: _built(cache, units[n], tokenize, recipe, exclusion)
    ):
        results[number] = result
        reused += known
        if progress:
            progress(len(results), len(units), sum(r.segment.tokens for r in results.values()))
    ordered = [results[number] for number in range(len(units))]
    files = {r.segment.digest: cache.path(r.segment.digest) for r in ordered if r.segment.tokens}
    return build_report(release_of(ordered, recipe, exclusion), files, ordered, reused=reused)


def _built(
    cache: SegmentCache, unit: Unit, tokenize: Tokenize, recipe: Recipe, exclusion: Exclusion
) -> tuple[UnitResult, bool]:
    documents = list(read_unit(unit))
    notes = BuildNotes(cache.directory)
    known = notes.get(input_digest(documents, recipe, exclusion))
    if known is not None and cache.open(known.segment.digest) is not None:
        return known, True
    result, data = build_unit(documents, tokenize, recipe, exclusion)
    cache.put(result.segment.digest, [data])
    notes.put(result)
    return result, False


def _in_parallel(
    number: int, workers: int, work: Callable[[int], tuple[UnitResult, bool]]
) -> Iterator[tuple[int, tuple[UnitResult, bool]]]:
    """Results as they come, never more than `workers` at work; the first error ends it."""
    with ThreadPoolExecutor(max(1, workers)) as pool:
        running: dict[Future[tuple[UnitResult, bool]], int] = {}
        waiting = iter(range(number))
        while True:
            for task in waiting:
                running[pool.submit(work, task)] = task
                if len(running) >= max(1, workers):
                    break
            if not running:
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=lambda future: running[future]):
                yield running.pop(future), future.result()


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _tokenized(batch: list[str], tokenize: Tokenize) -> Sequence[Sequence[int]]:
    rows = tokenize(batch)
    if len(rows) != len(batch):
        raise InvalidArgument("tokenize", f"{len(rows)} rows for {len(batch)} texts")
    return rows
