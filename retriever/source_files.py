"""Which files of a directory are documents, and how many others were passed over.

A data set that Hugging Face's `datasets` saved to disk says itself which files it is made of (state.json); what lies
beside them are caches of `map` and `filter`, copies of the same rows. One of several splits (dataset_dict.json) is a test
split as a rule, so which of them are wanted must be said.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.errors import InvalidArgument, NotFound
from retriever.documents import Kind, naming

USUAL_SUFFIXES = {
    Kind.TEXT: (".txt", ".md", ".rst", ".py"),
    Kind.JSON_LINES: (".jsonl", ".ndjson"),
    Kind.PARQUET: (".parquet",),
    Kind.ARROW: (".arrow",),
}
STATE, SPLITS = "state.json", "dataset_dict.json"
CACHE = "cache-"


@dataclass(frozen=True, slots=True)
class Source:
    """A file or directory of documents.

    kind TEXT: each file is a document (one longer than a unit becomes several, cut at line ends); JSON_LINES: each line's
    `field`; PARQUET, ARROW: each row's column `field` (a Hugging Face data set saved to disk is a directory of the latter).
    suffixes: which files of a directory; empty for the kind's usual ones. splits: which splits of a saved data set; empty
    for the only one.
    """

    path: Path
    kind: Kind
    field: str = "text"
    suffixes: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()


def files_of(source: Source) -> list[Path]:
    """The source's files by name.

    Raises NotFound (no such path, or a file that the data set names), InvalidArgument (no file of the kind there; splits
    that are not named or not there; a data set that is a selection of rows).
    """
    if source.path.is_file():
        return [source.path]
    if not source.path.is_dir():
        raise NotFound("source.path", f"{source.path} is neither a file nor a directory")
    wanted = _suffixes(source)
    found = [path for path in _all_files(source) if path.suffix in wanted]
    if source.kind is Kind.ARROW:
        found = list(_of_data_sets(source, found))
    elif source.splits:
        raise InvalidArgument("source.splits", f"only saved data sets have splits, not {source.kind.value} files")
    if not found:
        raise InvalidArgument("source.path", f"{source.path} holds no file that ends in {', '.join(wanted)}")
    return found


def passed_over(source: Source) -> Counter[str]:
    """How many files of a directory are not documents of the source, by suffix ("" for none)."""
    if not source.path.is_dir():
        return Counter()
    taken = set(files_of(source))
    return Counter(path.suffix for path in _all_files(source) if path not in taken)


def _suffixes(source: Source) -> tuple[str, ...]:
    given = tuple(suffix if suffix.startswith(".") else f".{suffix}" for suffix in source.suffixes)
    return given or USUAL_SUFFIXES[source.kind]


def _all_files(source: Source) -> list[Path]:
    with naming(source.path):
        return sorted(path for path in source.path.rglob("*") if path.is_file())


def _of_data_sets(source: Source, found: list[Path]) -> Iterator[Path]:
    dropped = _unwanted_splits(source)
    listed = {directory: _listed(directory) for directory in {path.parent for path in found}}
    for path in found:
        names = listed[path.parent]
        if dropped.isdisjoint(path.parents) and (path.name in names if names else not path.name.startswith(CACHE)):
            yield path


def _unwanted_splits(source: Source) -> set[Path]:
    unwanted: set[Path] = set()
    sets = [path for path in _all_files(source) if path.name == SPLITS]
    if source.splits and not sets:
        raise InvalidArgument("source.splits", f"{source.path} has no {SPLITS}, so no splits")
    for path in sets:
        splits = _read(path).get("splits")
        if not isinstance(splits, list) or not all(isinstance(name, str) for name in splits):
            raise InvalidArgument("source", f"{path} lists no splits")
        missing = set(source.splits) - set(splits)
        if missing or (len(splits) > 1 and not source.splits):
            told = f"has no {', '.join(sorted(missing))}" if missing else "has several splits, and none is chosen"
            raise InvalidArgument("source.splits", f"{path.parent} {told}; it has {', '.join(splits)}")
        unwanted |= {path.parent / name for name in splits if source.splits and name not in source.splits}
    return unwanted


def _listed(directory: Path) -> frozenset[str]:
    """Names of the files that a saved data set is made of; none where the directory is no saved data set."""
    path = directory / STATE
    if not path.is_file():
        return frozenset()
    state = _read(path)
    if state.get("_indices_data_files"):
        raise InvalidArgument("source", f"{directory} selects rows of its files: save it flattened")
    files = state.get("_data_files")
    try:
        names = frozenset(str(entry["filename"]) for entry in files or ())
    except (TypeError, KeyError) as error:
        raise InvalidArgument("source", f"{path} lists its files in an unknown way") from error
    missing = sorted(name for name in names if not (directory / name).is_file())
    if missing:
        raise NotFound("source.path", f"{path} names {missing[0]}, which is not there")
    return names


def _read(path: Path) -> dict[str, Any]:
    with naming(path):
        try:
            record = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise InvalidArgument("source", f"{path} is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise InvalidArgument("source", f"{path} is no JSON object")
    return record
