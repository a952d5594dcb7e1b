"""The account of one built unit, and of a whole build."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from retriever.release import Release, SegmentEntry


@dataclass(frozen=True, slots=True)
class UnitResult:
    """What became of a unit. `input_sha256` names its documents, the tokenizer and the exclusion: equal ones, equal bytes.

    documents: indexed; excluded_exact, excluded_overlap: dropped as evaluation material; unreadable: not Unicode text;
    absent: nulls.
    """

    input_sha256: str
    segment: SegmentEntry
    documents: int
    excluded_exact: int
    excluded_overlap: int
    unreadable: int
    absent: int = 0


@dataclass(frozen=True, slots=True)
class BuildReport:
    """The release and the counts summed over units. files: where each segment lies, unless it is in the store already.

    reused: units built before.
    """

    release: Release
    files: dict[str, Path]
    documents: int
    excluded_exact: int
    excluded_overlap: int
    unreadable: int
    absent: int
    reused: int


def build_report(
    release: Release, files: dict[str, Path], results: Sequence[UnitResult], *, reused: int
) -> BuildReport:
    """Sums the units' accounts."""
    return BuildReport(
        release=release,
        files=files,
        documents=sum(r.documents for r in results),
        excluded_exact=sum(r.excluded_exact for r in results),
        excluded_overlap=sum(r.excluded_overlap for r in results),
        unreadable=sum(r.unreadable for r in results),
        absent=sum(r.absent for r in results),
        reused=reused,
    )
