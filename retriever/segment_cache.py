"""Segments on this machine's disk, named by digest and memory-mapped: the page cache is shared between processes."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np

from contracts.errors import DataLoss, FailedPrecondition, ResourceExhausted
from retriever.segment import Segment
from retriever.segment_format import segment_digest, segment_from_bytes


class SegmentCache:
    """A directory of `<digest>.segment` files. Files appear whole (written aside, then renamed) and never change."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def path(self, digest: str) -> Path:
        """Where the segment lies, or would."""
        return self.directory / f"{digest}.segment"

    def put(self, digest: str, chunks: Iterable[bytes]) -> Path:
        """Write the segment's bytes. Raises DataLoss where they do not have the digest, ResourceExhausted on a full disk."""
        handle, name = tempfile.mkstemp(dir=self.directory, prefix=".incoming-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.writelines(chunks)
                file.flush()
                os.fsync(file.fileno())
            found = segment_digest(memoryview(_mapped(Path(name))))
            if found != digest:
                raise DataLoss("segment.digest", f"bytes of {found} came under the name {digest}")
            os.replace(name, self.path(digest))
        except OSError as error:
            raise ResourceExhausted("segment_cache", f"cannot write {digest}: {error.strerror}") from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
        return self.path(digest)

    def open(self, digest: str, *, verify: bool = True) -> Segment | None:
        """Map the segment, or None where it is not here. A file whose content is not its name is removed, and is not here."""
        path = self.path(digest)
        if not path.exists():
            return None
        data = _mapped(path)
        if verify and segment_digest(memoryview(data)) != digest:
            path.unlink(missing_ok=True)
            return None
        try:
            return segment_from_bytes(data, verify=verify)
        except (DataLoss, FailedPrecondition):
            path.unlink(missing_ok=True)
            raise

    def prune(self, keep: Collection[str]) -> list[str]:
        """Remove all segments but those in `keep`; the digests removed. Mapped ones stay readable until unmapped."""
        gone = sorted(p.stem for p in self.directory.glob("*.segment") if p.stem not in keep)
        for digest in gone:
            self.path(digest).unlink(missing_ok=True)
        return gone


def _mapped(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    if path.stat().st_size == 0:
        return np.empty(0, np.uint8)
    return np.memmap(path, np.uint8, mode="r")
