"""Building an index for the model's tokenizer and publishing it, for the command line and the demo."""

from __future__ import annotations

import json
import os
import sysconfig
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import InvalidArgument, Unavailable
from retriever.build import Recipe, build
from retriever.compaction import Compacted, OutputRules, compact
from retriever.documents import naming
from retriever.exclusion import NGRAM, Exclusion, exclusion_of
from retriever.library import Library
from retriever.live import LiveLibrary
from retriever.publish import activate, publish
from retriever.redis_store import RedisStore
from retriever.release import Binding, check_binding
from retriever.segment_cache import SegmentCache
from retriever.source_files import passed_over
from retriever.sources import Kind, Source, plan_units, unit_bytes_for
from retriever.store import Alias, ReleaseStore
from retriever.unit_result import BuildReport
from services.retriever_service.live_policies import parse_policies
from services.revision import builder_commit
from services.text import CheckpointTokenizer

CONTEXT_LENGTH, MAX_CONTEXT_LENGTH = 64, 4096
CONTINUATION_LENGTH, MAX_CONTINUATION_LENGTH = 32, 512


@dataclass(frozen=True)
class OnRay:
    """Build on a Ray cluster. address: see `services.jobs.ray_cluster`. redis_url: the store as the nodes reach it."""

    address: str
    redis_url: str
    redis_namespace: str = "draftproof"
    cores: int | None = None


@dataclass(frozen=True)
class Built:
    """What was built and published, what its name points to now, and files of the sources' directories that were passed
    over, by suffix.
    """

    report: BuildReport
    alias: Alias
    passed_over: Mapping[str, int]


def standard_library() -> list[Source]:
    """Python's own library as a corpus: the modules that stand directly in its directory, about 5 MB of source."""
    directory = Path(sysconfig.get_paths()["stdlib"])
    return [Source(path, Kind.TEXT) for path in sorted(directory.glob("*.py"))]


def read_excluded(path: Path) -> list[str]:
    """Texts that must not be in an index: every string in a JSON-lines file, or the whole of any other file.

    Raises NotFound, PermissionDenied, DataLoss (it cannot be read), InvalidArgument (not UTF-8, or a line is not JSON).
    """
    with naming(path):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise InvalidArgument("exclude", f"{path} is not UTF-8: {error}") from error
    if path.suffix != ".jsonl":
        return [text]
    out: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                _strings(json.loads(line), out)
            except (ValueError, RecursionError) as error:
                raise InvalidArgument("exclude", f"{path}: line {number} is not JSON: {error}") from error
    return out


def _strings(value: object, out: list[str]) -> None:
    if isinstance(value, str):
        out.append(value)
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            _strings(item, out)


def build_index(
    store: ReleaseStore,
    index: str,
    sources: Sequence[Source],
    checkpoint: Path,
    directory: Path,
    *,
    licence: str,
    excluded: Sequence[str] = (),
    tenants: Sequence[str] = (),
    ngram: int | None = None,
    on_ray: OnRay | None = None,
    unit_bytes: int | None = None,
    context_length: int = CONTEXT_LENGTH,
    continuation_length: int = CONTINUATION_LENGTH,
    progress: Callable[[str, int, int], None],
) -> Built:
    """Tokenises, sorts, publishes, and points `index` at the release. progress: (step, done, of all).

    directory: where segments or notes of them are kept; what was built there before is reused. excluded, ngram: see
    `retriever.exclusion`. tenants: who may see the release; empty: everybody. on_ray: build there; the release is the same.
    unit_bytes: source bytes a segment; None: by the corpus. context_length, continuation_length: the longest suffix and the
    deepest continuation that queries may ask for.

    Raises InvalidArgument for an empty name and an ngram without excluded texts, and what builder, store and Ray raise.
    """
    if not index:
        raise InvalidArgument("index", "is empty")
    exclusion = _exclusion(excluded, ngram)
    recipe, tokenizer = recipe_for(checkpoint, licence, tenants, context_length, continuation_length)
    units = plan_units(sources, unit_bytes or unit_bytes_for(sources))

    def building(done: int, of_all: int, tokens: int) -> None:
        progress("building", done, of_all)

    if on_ray is None:
        report = build(
            units,
            tokenizer.encode_documents,
            recipe,
            directory,
            exclusion=exclusion,
            workers=len(os.sched_getaffinity(0)),
            progress=building,
        )
    else:
        from services.jobs.index_build import build_on_ray

        report = build_on_ray(
            on_ray.address,
            units,
            checkpoint,
            recipe,
            directory,
            store,
            redis_url=on_ray.redis_url,
            redis_namespace=on_ray.redis_namespace,
            exclusion=exclusion,
            cores=on_ray.cores,
            progress=building,
        )
    release_id = publish(
        store,
        report.release,
        dict(report.files),
        # On a cluster the tasks have read back what they brought in; it must not all pass through here once more.
        checked=[entry.digest for entry in report.release.segments] if on_ray else (),
        progress=lambda stored, size: progress("publishing", stored, size),
    )
    skipped: Counter[str] = Counter()
    for source in sources:
        skipped.update(passed_over(source))
    return Built(report, activate(store, index, release_id), dict(skipped.most_common()))


def _exclusion(excluded: Sequence[str], ngram: int | None) -> Exclusion:
    if ngram is not None and not excluded:
        raise InvalidArgument("ngram", f"{ngram} words in a row of no text: give the excluded ones with --exclude")
    return exclusion_of(excluded, NGRAM if ngram is None else ngram)


def recipe_for(
    checkpoint: Path,
    licence: str,
    tenants: Sequence[str] = (),
    context_length: int = CONTEXT_LENGTH,
    continuation_length: int = CONTINUATION_LENGTH,
) -> tuple[Recipe, CheckpointTokenizer]:
    """What a build for this checkpoint's tokenizer fixes, and the tokenizer.

    Raises InvalidArgument for lengths out of range.
    """
    for name, length, most in (
        ("context_length", context_length, MAX_CONTEXT_LENGTH),
        ("continuation_length", continuation_length, MAX_CONTINUATION_LENGTH),
    ):
        if not 1 <= length <= most:
            raise InvalidArgument(name, f"{length} is outside [1, {most}]")
    tokenizer = CheckpointTokenizer(checkpoint)
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    recipe = Recipe(
        licence_policy=licence,
        tokenizer_sha256=tokenizer.digest,
        normalisation="none",
        vocabulary_size=max(tokenizer.vocab_size, int(config.get("vocab_size", 0))),
        context_length=context_length,
        continuation_length=continuation_length,
        builder_commit=builder_commit(),
        target_family=str(config.get("model_type", "")),
        tenants=tuple(sorted(set(tenants))),
    )
    return recipe, tokenizer


def compact_index(
    store: RedisStore,
    index: str,
    tenant: str,
    directory: Path,
    *,
    checkpoint: Path,
    policies: str,
    licence: str = "unstated",
    excluded: Sequence[str] = (),
    ngram: int | None = None,
) -> tuple[Compacted, int]:
    """Folds the newest live generation into a new release; what became of it, and the generation.

    directory: cache of segments. checkpoint: whose tokenizer the outputs' ids come from. policies: the retrievers'
    DRAFTPROOF_LIVE_POLICIES. licence: the terms of the outputs. excluded, ngram: those that the index was built with.
    Raises what `retriever.compaction` and the store raise, NotFound for an index that the tenant cannot see,
    FailedPrecondition for an index of another tokenizer.
    """
    tokenizer = CheckpointTokenizer(checkpoint)
    exclusion = _exclusion(excluded, ngram)
    library = Library(store, directory, indexes=[index], local_name="")
    library.poll()
    status = library.status()
    if not status.store_connected:
        raise Unavailable("redis", status.store_error)
    base = library.current(index, tenant)
    check_binding(base.release.manifest, Binding(tokenizer_sha256=tokenizer.digest))
    live = LiveLibrary(store, parse_policies(policies), library.tokenizers)
    live.poll()
    generation = live.generation(index, tenant, tokenizer=base.release.manifest.tokenizer_sha256)
    rules = OutputRules(tokenizer.decode, exclusion, licence, builder_commit())
    cache = SegmentCache(directory)
    sources = {entry.digest: cache.path(entry.digest) for entry in base.release.segments}
    return compact(store, live, index, tenant, base, generation, rules, sources), generation
