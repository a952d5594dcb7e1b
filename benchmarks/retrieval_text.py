"""The text of this machine that benchmarks index: Python source and documentation, each document once, all kinds mixed.

A benchmark that compares sizes takes the beginnings of one sequence of documents, so these have to be alike: files come in
an order that has nothing to do with where they stand. Of several Pythons' libraries most files are near-copies of one
another; a document is left out where half of its lines have occurred.
"""

from __future__ import annotations

import hashlib
import sys
import sysconfig
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

SUFFIXES = (".py", ".pyi", ".rst", ".md", ".txt")
# A document has so many characters at most; what a longer file holds beyond them is left out.
LONGEST = 1 << 18
# Lines of fewer characters occur everywhere.
LEAST_LINE = 20
_BATCH_CHARACTERS = 4 << 20


def roots() -> list[Path]:
    """The libraries of this Python and of those installed beside it, the installed packages, /usr/lib and /usr/share."""
    paths = sysconfig.get_paths()
    beside = sorted(Path(sys.base_prefix).parent.glob("*/lib/python*"))
    every = [Path(paths["stdlib"]), Path(paths["purelib"]), *beside, Path("/usr/lib"), Path("/usr/share")]
    return list(dict.fromkeys(root.resolve() for root in every))


def files() -> list[Path]:
    """Source and documentation below the roots, in the order of a hash of their paths."""
    found = {
        path
        for root in roots()
        for path in root.rglob("*")
        if path.suffix in SUFFIXES and path.is_file() and not path.is_symlink()
    }
    return sorted(found, key=lambda path: hashlib.sha256(bytes(path)).digest())


def distinct(texts: Iterable[str]) -> Iterator[str]:
    """Those texts of whose lines, counted once each, no more than half have occurred in earlier ones, left out or not."""
    seen: set[int] = set()
    for text in texts:
        lines = {zlib.crc32(line.encode()) for row in text.splitlines() if len(line := row.strip()) >= LEAST_LINE}
        known = len(lines & seen)
        seen |= lines
        if 2 * known < len(lines):
            yield text


def batches(paths: Iterable[Path]) -> Iterator[list[str]]:
    """The distinct documents of files that are text, some at a time."""
    batch: list[str] = []
    size = 0
    for text in distinct(_texts(paths)):
        batch.append(text)
        size += len(text)
        if size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _texts(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        try:
            yield path.read_text(encoding="utf-8")[:LONGEST]
        except UnicodeDecodeError:
            continue
