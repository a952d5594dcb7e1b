"""Where documents come from, cut into units that can be built one by one, anywhere, in any order.

The cut is a function of the files' names, sizes and inner structure alone, so every builder makes the same units.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from retriever.documents import Document, Kind, Piece, naming, parts_of, read_piece
from retriever.source_files import Source, files_of

__all__ = ["Kind", "Source", "Unit", "plan_units", "read_unit", "unit_bytes_for"]

DEFAULT_UNIT_BYTES = 64 << 20
MIN_UNIT_BYTES, MAX_UNIT_BYTES = 16 << 20, 128 << 20
AIMED_SEGMENTS = 8


@dataclass(frozen=True, slots=True)
class Unit:
    """The pieces of one segment, in order."""

    pieces: tuple[Piece, ...]


def plan_units(sources: Sequence[Source], unit_bytes: int = DEFAULT_UNIT_BYTES) -> tuple[Unit, ...]:
    """Cut the sources into units of about unit_bytes, in the order given, files by name.

    Raises what `source_files.files_of` raises, DataLoss (a damaged file), FailedPrecondition (pyarrow missing).
    """
    units: list[Unit] = []
    waiting: list[Piece] = []
    filled = 0
    for source in sources:
        for path in files_of(source):
            for piece, size in _pieces(source, path, unit_bytes):
                waiting.append(piece)
                filled += size
                if filled >= unit_bytes:
                    units.append(Unit(tuple(waiting)))
                    waiting, filled = [], 0
    if waiting:
        units.append(Unit(tuple(waiting)))
    return tuple(units)


def unit_bytes_for(sources: Sequence[Source]) -> int:
    """A unit size, a power of two of bytes, that gives the corpus few segments.

    A query looks into every segment, so their number, not their size, is what it pays for; a unit of MAX_UNIT_BYTES still
    builds in about 1.5 GB of memory. A corpus that grows by less than a factor of two keeps its cuts.
    """
    total = sum(_size(path) for source in sources for path in files_of(source))
    size = MIN_UNIT_BYTES
    while size < MAX_UNIT_BYTES and size * AIMED_SEGMENTS < total:
        size *= 2
    return size


def read_unit(unit: Unit) -> Iterator[Document]:
    """The unit's documents in order, gaps in the places of those that cannot be indexed.

    Raises InvalidArgument for malformed records, DataLoss for a damaged file, NotFound and PermissionDenied.
    """
    for piece in unit.pieces:
        yield from read_piece(piece)


def _pieces(source: Source, path: Path, unit_bytes: int) -> Iterator[tuple[Piece, int]]:
    if source.kind in (Kind.PARQUET, Kind.ARROW):
        for number, size in enumerate(parts_of(source.kind, path)):
            yield Piece(path, source.kind, source.field, number, number + 1), size
        return
    size = _size(path)
    for begin in range(0, size, unit_bytes):
        end = min(size, begin + unit_bytes)
        yield Piece(path, source.kind, source.field, begin, end), end - begin


def _size(path: Path) -> int:
    with naming(path):
        return path.stat().st_size
