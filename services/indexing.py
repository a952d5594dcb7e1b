"""Building an index for the model's tokenizer and publishing it, for the command line and the demo."""

from __future__ import annotations

import json
import os
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from contracts.errors import InvalidArgument
from retriever.build import BuildReport, Recipe, build
from retriever.exclusion import exclusion_of
from retriever.publish import activate, publish
from retriever.sources import Kind, Source, plan_units
from retriever.store import Alias, ReleaseStore
from services.text import CheckpointTokenizer

CONTEXT_LENGTH = 64
CONTINUATION_LENGTH = 32
_UNIT_BYTES = 16 << 20


@dataclass(frozen=True)
class Built:
    """What was built and published, and what its name points to now."""

    report: BuildReport
    alias: Alias


def _version() -> str:
    try:
        return version("draftproof")
    except PackageNotFoundError:
        return "from source"


def standard_library() -> list[Source]:
    """Python's own library as a corpus: the modules that stand directly in its directory, about 5 MB of source."""
    directory = Path(sysconfig.get_paths()["stdlib"])
    return [Source(path, Kind.TEXT) for path in sorted(directory.glob("*.py"))]


def read_excluded(path: Path) -> list[str]:
    """Texts that must not be in an index: every string in a JSON-lines file, or the whole of any other file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".jsonl":
        return [text]
    out: list[str] = []
    for line in filter(str.strip, text.splitlines()):
        _strings(json.loads(line), out)
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
    progress: Callable[[str, int, int], None],
) -> Built:
    """Tokenises, sorts, publishes, and points `index` at the release. progress: (step, done, of all).

    directory: where segments are built; what was built there before is reused. Raises InvalidArgument for an empty name
    and what the retriever's builder and store raise.
    """
    if not index:
        raise InvalidArgument("index", "is empty")
    tokenizer = CheckpointTokenizer(checkpoint)
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    recipe = Recipe(
        licence_policy=licence,
        tokenizer_sha256=tokenizer.digest,
        normalisation="none",
        vocabulary_size=max(tokenizer.vocab_size, int(config.get("vocab_size", 0))),
        context_length=CONTEXT_LENGTH,
        continuation_length=CONTINUATION_LENGTH,
        builder_commit=f"draftproof {_version()}",
        target_family=str(config.get("model_type", "")),
    )
    report = build(
        plan_units(sources, _UNIT_BYTES),
        tokenizer.encode_documents,
        recipe,
        directory,
        exclusion=exclusion_of(excluded),
        workers=len(os.sched_getaffinity(0)),
        progress=lambda done, units, _: progress("building", done, units),
    )
    release_id = publish(
        store,
        report.release,
        dict(report.files),
        progress=lambda stored, size: progress("publishing", stored, size),
    )
    return Built(report, activate(store, index, release_id))
