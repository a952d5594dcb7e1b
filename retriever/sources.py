"""Where documents come from, cut into units that can be built one by one, anywhere, in any order.

The cut is a function of the files' names, sizes and inner structure alone, so every builder makes the same units.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from contracts.errors import FailedPrecondition, InvalidArgument, NotFound

DEFAULT_UNIT_BYTES = 64 << 20
MIN_UNIT_BYTES, MAX_UNIT_BYTES = 16 << 20, 128 << 20
AIMED_SEGMENTS = 8


class Kind(Enum):
    """How a file holds documents."""

    TEXT = "text"
    JSON_LINES = "jsonl"
    PARQUET = "parquet"
    ARROW = "arrow"


@dataclass(frozen=True, slots=True)
class Source:
    """A file or directory of documents.

    kind TEXT: each file is a document (one longer than a unit becomes several, cut at line ends); JSON_LINES: each line's
    `field`; PARQUET, ARROW: each row's column `field` (a Hugging Face data set saved to disk is a directory of either).
    suffixes: which files of a directory; empty for the kind's usual ones.
    """

    path: Path
    kind: Kind
    field: str = "text"
    suffixes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a file: bytes [begin, end) of text and JSON lines, row groups of parquet, record batches of arrow."""

    path: Path
    kind: Kind
    field: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Unit:
    """The pieces of one segment, in order."""

    pieces: tuple[Piece, ...]


USUAL_SUFFIXES = {
    Kind.TEXT: (".txt", ".md", ".rst", ".py"),
    Kind.JSON_LINES: (".jsonl", ".ndjson"),
    Kind.PARQUET: (".parquet",),
    Kind.ARROW: (".arrow",),
}


def plan_units(sources: Sequence[Source], unit_bytes: int = DEFAULT_UNIT_BYTES) -> tuple[Unit, ...]:
    """Cut the sources into units of about unit_bytes, in the order given, files by name.

    Raises NotFound (no such path), InvalidArgument (no file of the kind there), FailedPrecondition (pyarrow missing).
    """
    units: list[Unit] = []
    waiting: list[Piece] = []
    filled = 0
    for source in sources:
        for path in _files(source):
            for piece, size in _PIECES[source.kind](source, path, unit_bytes):
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
    total = sum(path.stat().st_size for source in sources for path in _files(source))
    size = MIN_UNIT_BYTES
    while size < MAX_UNIT_BYTES and size * AIMED_SEGMENTS < total:
        size *= 2
    return size


def read_unit(unit: Unit) -> Iterator[str | None]:
    """The unit's documents in order; None for one that is not UTF-8. Raises InvalidArgument for malformed records."""
    for piece in unit.pieces:
        yield from _READERS[piece.kind](piece)


def _files(source: Source) -> list[Path]:
    if source.path.is_file():
        return [source.path]
    if not source.path.is_dir():
        raise NotFound("source.path", f"{source.path} is neither a file nor a directory")
    wanted = source.suffixes or USUAL_SUFFIXES[source.kind]
    found = sorted(path for path in source.path.rglob("*") if path.suffix in wanted and path.is_file())
    if not found:
        raise InvalidArgument("source.path", f"{source.path} holds no file that ends in {', '.join(wanted)}")
    return found


def _byte_pieces(source: Source, path: Path, unit_bytes: int) -> Iterator[tuple[Piece, int]]:
    size = path.stat().st_size
    for begin in range(0, size, unit_bytes):
        end = min(size, begin + unit_bytes)
        yield Piece(path, source.kind, source.field, begin, end), end - begin


def _parquet_pieces(source: Source, path: Path, unit_bytes: int) -> Iterator[tuple[Piece, int]]:
    metadata = _pyarrow("pyarrow.parquet").read_metadata(path)
    for group in range(metadata.num_row_groups):
        size = metadata.row_group(group).total_byte_size
        yield Piece(path, source.kind, source.field, group, group + 1), size


def _arrow_pieces(source: Source, path: Path, unit_bytes: int) -> Iterator[tuple[Piece, int]]:
    for number, batch in enumerate(_arrow_batches(path)):
        yield Piece(path, source.kind, source.field, number, number + 1), batch.nbytes


def _lines(piece: Piece) -> Iterator[bytes]:
    """The lines that start in [begin, end): a line across a cut belongs to the piece it starts in."""
    with piece.path.open("rb") as file:
        if piece.begin:
            file.seek(piece.begin - 1)
            file.readline()
        while file.tell() < piece.end and (line := file.readline()):
            yield line


def _read_text(piece: Piece) -> Iterator[str | None]:
    document = b"".join(_lines(piece))
    if document:
        try:
            yield document.decode()
        except UnicodeDecodeError:
            yield None


def _read_json_lines(piece: Piece) -> Iterator[str | None]:
    for line in _lines(piece):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise InvalidArgument("source", f"{piece.path}: a line is not JSON: {error}") from error
        text = record.get(piece.field) if isinstance(record, dict) else None
        if not isinstance(text, str):
            raise InvalidArgument("source.field", f"{piece.path}: a line has no text in {piece.field!r}")
        yield text


def _read_parquet(piece: Piece) -> Iterator[str | None]:
    with _pyarrow("pyarrow.parquet").ParquetFile(piece.path) as file:
        if piece.field not in file.schema_arrow.names:
            raise InvalidArgument("source.field", f"{piece.path} has no column {piece.field!r}")
        for group in range(piece.begin, piece.end):
            yield from _column(file.read_row_group(group, columns=[piece.field]), piece)


def _read_arrow(piece: Piece) -> Iterator[str | None]:
    for number, batch in enumerate(_arrow_batches(piece.path)):
        if piece.begin <= number < piece.end:
            if piece.field not in batch.schema.names:
                raise InvalidArgument("source.field", f"{piece.path} has no column {piece.field!r}")
            yield from _column(batch, piece)


def _column(table: Any, piece: Piece) -> Iterator[str]:
    for value in table.column(piece.field).to_pylist():
        if not isinstance(value, str):
            raise InvalidArgument("source.field", f"{piece.path}: {piece.field!r} holds {type(value).__name__}")
        yield value


def _arrow_batches(path: Path) -> Iterator[Any]:
    pyarrow = _pyarrow("pyarrow")
    with pyarrow.memory_map(str(path)) as file:
        try:
            reader = pyarrow.ipc.open_stream(file)
        except pyarrow.ArrowInvalid:
            reader = pyarrow.ipc.open_file(file)
            yield from (reader.get_batch(number) for number in range(reader.num_record_batches))
            return
        yield from reader


def _pyarrow(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise FailedPrecondition("source.kind", "parquet and arrow files need the package pyarrow") from error


_PIECES: dict[Kind, Callable[[Source, Path, int], Iterator[tuple[Piece, int]]]] = {
    Kind.TEXT: _byte_pieces,
    Kind.JSON_LINES: _byte_pieces,
    Kind.PARQUET: _parquet_pieces,
    Kind.ARROW: _arrow_pieces,
}
_READERS: dict[Kind, Callable[[Piece], Iterator[str | None]]] = {
    Kind.TEXT: _read_text,
    Kind.JSON_LINES: _read_json_lines,
    Kind.PARQUET: _read_parquet,
    Kind.ARROW: _read_arrow,
}
