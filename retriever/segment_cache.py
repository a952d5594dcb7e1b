"""Segments on this machine's disk, named by digest: memory-mapped, or copied into memory of the process's own.

Mapped, all processes of a machine share the page cache. Copied, the memory lies in huge pages (numpy asks for them), which
spares a search over a large segment most of its address translations.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from contracts.errors import DataLoss, FailedPrecondition, ResourceExhausted
from retriever.segment import Segment
from retriever.segment_format import ALIGNMENT, segment_digest, segment_from_bytes


class SegmentCache:
    """A directory of `<digest>.segment` files. Files appear whole (written aside, then renamed) and never change.

    copied: `open` copies a segment instead of mapping it.
    """

    def __init__(self, directory: Path, *, copied: bool = False) -> None:
        self.directory = directory
        self.copied = copied
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
            found = segment_digest(_mapped(Path(name)))
            if found != digest:
                raise DataLoss("segment.digest", f"bytes of {found} came under the name {digest}")
            os.replace(name, self.path(digest))
        except OSError as error:
            raise ResourceExhausted("segment_cache", f"cannot write {digest}: {error.strerror}") from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
        return self.path(digest)

    def open(self, digest: str, *, verify: bool = True, copied: bool | None = None) -> Segment | None:
        """The segment, or None where it is not here. A file whose content is not its name is removed first.

        copied: not as the cache does by itself.
        """
        path = self.path(digest)
        if not path.exists():
            return None
        # Its age says when somebody last wanted it: whoever prunes the directory must not take it away under us.
        with contextlib.suppress(OSError):
            os.utime(path)
        data = _copy_of(path) if (self.copied if copied is None else copied) else _mapped(path)
        if verify and segment_digest(data) != digest:
            path.unlink(missing_ok=True)
            return None
        try:
            return segment_from_bytes(data, verify=verify)
        except (DataLoss, FailedPrecondition):
            path.unlink(missing_ok=True)
            raise

    def prune(self, keep: Collection[str], older_than_s: float = 3600.0) -> list[str]:
        """Remove segments written or opened more than older_than_s ago that are not in `keep`; the digests removed.

        Another process may share the directory: what it has mapped stays readable, and the age keeps this call from
        taking away what it has just fetched or opened.
        """
        gone = []
        for path in sorted(self.directory.glob("*.segment")):
            with contextlib.suppress(FileNotFoundError):
                if path.stem not in keep and path.stat().st_mtime <= time.time() - older_than_s:
                    path.unlink()
                    gone.append(path.stem)
        return gone


def _mapped(path: Path) -> NDArray[np.uint8]:
    if path.stat().st_size == 0:
        return np.empty(0, np.uint8)
    return np.memmap(path, np.uint8, mode="r")


def _copy_of(path: Path) -> NDArray[np.uint8]:
    """The file's bytes, from a multiple of ALIGNMENT on as in a map: 16 neighbours in a suffix array are one line then."""
    size = path.stat().st_size
    room = np.empty(size + ALIGNMENT, np.uint8)
    skipped = -room.ctypes.data % ALIGNMENT
    data = room[skipped : skipped + size]
    with path.open("rb", buffering=0) as file:
        read = 0
        while count := file.readinto(data[read:].data):
            read += count
    return data[:read]
