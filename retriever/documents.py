"""Reading documents out of files, piece by piece. What is wrong with a file is a typed error that names it."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from contracts.errors import DataLoss, FailedPrecondition, InvalidArgument, NotFound, PermissionDenied


class Kind(Enum):
    """How a file holds documents."""

    TEXT = "text"
    JSON_LINES = "jsonl"
    PARQUET = "parquet"
    ARROW = "arrow"


class Gap(Enum):
    """What stands in place of a document that cannot be indexed. UNREADABLE: not Unicode text; ABSENT: a null."""

    UNREADABLE = "unreadable"
    ABSENT = "absent"


Document = str | Gap


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a file: bytes [begin, end) of text and JSON lines, row groups of parquet, record batches of arrow."""

    path: Path
    kind: Kind
    field: str
    begin: int
    end: int


def read_piece(piece: Piece) -> Iterator[Document]:
    """The piece's documents in order, gaps in their places.

    Raises InvalidArgument for malformed records, DataLoss for a damaged file, NotFound and PermissionDenied.
    """
    with naming(piece.path):
        yield from _READERS[piece.kind](piece)


def parts_of(kind: Kind, path: Path) -> Iterator[int]:
    """Sizes in bytes of a parquet file's row groups or an arrow file's record batches. Raises as `read_piece`."""
    with naming(path):
        if kind is Kind.PARQUET:
            metadata = _pyarrow("pyarrow.parquet").read_metadata(path)
            yield from (metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
        else:
            yield from (batch.nbytes for batch in _arrow_batches(path))


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Gives errors of the file system and of pyarrow their types, and the path."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound("source.path", f"{path} is not there (any more)") from error
    except PermissionError as error:
        raise PermissionDenied("source.path", f"{path} may not be read") from error
    except Exception as error:
        # pyarrow is optional, so its errors are known by where they come from; it reports broken files as OSError too.
        if not isinstance(error, OSError) and not type(error).__module__.startswith("pyarrow"):
            raise
        raise DataLoss("source", f"{path} cannot be read: {error}") from error


def _lines(piece: Piece) -> Iterator[bytes]:
    """The lines that start in [begin, end): a line across a cut belongs to the piece it starts in."""
    with piece.path.open("rb") as file:
        if piece.begin:
            file.seek(piece.begin - 1)
            file.readline()
        while file.tell() < piece.end and (line := file.readline()):
            yield line


def _read_text(piece: Piece) -> Iterator[Document]:
    document = b"".join(_lines(piece))
    if document:
        try:
            yield document.decode()
        except UnicodeDecodeError:
            yield Gap.UNREADABLE


def _read_json_lines(piece: Piece) -> Iterator[Document]:
    for line in _lines(piece):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except UnicodeDecodeError:
            yield Gap.UNREADABLE
            continue
        except (ValueError, RecursionError) as error:
            raise InvalidArgument("source", f"{piece.path}: a line is not JSON: {error}") from error
        if not isinstance(record, dict) or piece.field not in record:
            raise InvalidArgument("source.field", f"{piece.path}: a line has no {piece.field!r}")
        yield _document(record[piece.field], piece)


def _read_parquet(piece: Piece) -> Iterator[Document]:
    with _pyarrow("pyarrow.parquet").ParquetFile(piece.path) as file:
        if piece.field not in file.schema_arrow.names:
            raise InvalidArgument("source.field", f"{piece.path} has no column {piece.field!r}")
        for group in range(piece.begin, piece.end):
            yield from _column(file.read_row_group(group, columns=[piece.field]), piece)


def _read_arrow(piece: Piece) -> Iterator[Document]:
    for number, batch in enumerate(_arrow_batches(piece.path)):
        if piece.begin <= number < piece.end:
            if piece.field not in batch.schema.names:
                raise InvalidArgument("source.field", f"{piece.path} has no column {piece.field!r}")
            yield from _column(batch, piece)


def _column(table: Any, piece: Piece) -> Iterator[Document]:
    column = table.column(piece.field)
    try:
        values = column.to_pylist()
    except UnicodeDecodeError:
        # One bad row must not cost the others: row by row it is slower.
        values = [_row(column, row) for row in range(len(column))]
    for value in values:
        yield value if isinstance(value, Gap) else _document(value, piece)


def _row(column: Any, row: int) -> Any:
    try:
        return column[row].as_py()
    except UnicodeDecodeError:
        return Gap.UNREADABLE


def _document(value: object, piece: Piece) -> Document:
    if value is None:
        return Gap.ABSENT
    if not isinstance(value, str):
        raise InvalidArgument("source.field", f"{piece.path}: {piece.field!r} holds {type(value).__name__}")
    try:
        # JSON can spell half of a surrogate pair, which is no character and has no UTF-8.
        value.encode()
    except UnicodeEncodeError:
        return Gap.UNREADABLE
    return value


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


_READERS: dict[Kind, Callable[[Piece], Iterator[Document]]] = {
    Kind.TEXT: _read_text,
    Kind.JSON_LINES: _read_json_lines,
    Kind.PARQUET: _read_parquet,
    Kind.ARROW: _read_arrow,
}
