"""What a retriever served last, on its own disk, so that it can serve again while the store is away.

The segments lie in the segment cache by digest; here are the releases' canonical bytes and what each index pointed to.
Several retrievers may share a cache directory: each has a copy of its own there, and no segment that any of these names
is taken away (`held_by_copies`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from contracts.errors import DraftproofError, NotFound, Unavailable
from retriever.release import release_from_bytes
from retriever.store import Alias, SegmentRecord

RENEW_S = 3600.0
# A copy that nobody has renewed for so long is of a retriever that will not come back.
ABANDONED_S = 30 * 24 * 3600.0


class LocalCopy:
    """One file, replaced as a whole. It reads like a store that has releases and no chunk (`store.ReleaseReader`).

    earlier: where an earlier version kept it; read while there is no file at `path`.
    """

    def __init__(self, path: Path, earlier: Path | None = None) -> None:
        self._path = path
        self._earlier = earlier

    def save(self, served: Mapping[str, tuple[Alias, bytes]]) -> None:
        """Remember each index's alias and the canonical bytes of the release it brought."""
        record = {name: {"version": alias.version, "release": data.decode()} for name, (alias, data) in served.items()}
        aside = self._path.with_suffix(f".{os.getpid()}.incoming")
        aside.write_text(json.dumps(record))
        aside.replace(self._path)

    def renew(self) -> None:
        """Say, at most every RENEW_S, that the copy's retriever still runs."""
        with contextlib.suppress(OSError):
            if self._path.stat().st_mtime < time.time() - RENEW_S:
                os.utime(self._path)

    def saved(self) -> dict[str, tuple[Alias, bytes]]:
        """What was saved: as `save` takes it; empty where nothing was, or nothing readable."""
        return {
            name: (Alias(name, hashlib.sha256(data).hexdigest(), version), data)
            for name, (version, data) in _read(self._path if self._path.exists() else self._earlier).items()
        }

    def aliases(self) -> dict[str, Alias]:
        """What each index pointed to."""
        return {name: alias for name, (alias, _) in self.saved().items()}

    def get_release(self, release_id: str) -> bytes:
        """Its canonical bytes. Raises NotFound."""
        for alias, data in self.saved().values():
            if alias.release_id == release_id:
                return data
        raise NotFound("release_id", f"no copy of release {release_id} here")

    def segment(self, digest: str) -> SegmentRecord | None:
        """Raises Unavailable: chunks come from the store only."""
        raise Unavailable("store", f"is away, and segment {digest} is not in the local cache")

    def get_chunk(self, digest: str, index: int) -> bytes:
        """Raises Unavailable, as `segment`."""
        raise Unavailable("store", f"is away, and chunk {index} of segment {digest} is not in the local cache")


def held_by_copies(directory: Path) -> set[str]:
    """Digests of the segments that any retriever's copy in the directory names, abandoned copies aside."""
    held: set[str] = set()
    for path in directory.glob("*.json"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - ABANDONED_S:
                continue
        for _, data in _read(path).values():
            with contextlib.suppress(DraftproofError):
                release = release_from_bytes(data, hashlib.sha256(data).hexdigest())
                held |= {entry.digest for entry in release.segments}
    return held


def _read(path: Path | None) -> dict[str, tuple[int, bytes]]:
    """Version and release by index; empty for a file that is not there or is no copy."""
    try:
        record = json.loads(path.read_text()) if path is not None else {}
        return {str(name): (int(entry["version"]), entry["release"].encode()) for name, entry in record.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
