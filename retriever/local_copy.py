"""What a retriever served last, on its own disk, so that it can serve again while the store is away.

The segments lie in the segment cache by digest; here are the releases' canonical bytes and what each index pointed to.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contracts.errors import NotFound, Unavailable
from retriever.store import Alias, SegmentRecord


class LocalCopy:
    """One file, replaced as a whole. It reads like a store that has releases and no chunk (`store.ReleaseReader`)."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def save(self, served: Mapping[str, tuple[Alias, bytes]]) -> None:
        """Remember each index's alias and the canonical bytes of the release it brought."""
        record = {name: {"version": alias.version, "release": data.decode()} for name, (alias, data) in served.items()}
        aside = self._path.with_suffix(f".{os.getpid()}.incoming")
        aside.write_text(json.dumps(record))
        aside.replace(self._path)

    def aliases(self) -> dict[str, Alias]:
        """What each index pointed to; empty where nothing was saved, or nothing readable."""
        return {name: Alias(name, _id(entry["release"]), int(entry["version"])) for name, entry in self._read().items()}

    def get_release(self, release_id: str) -> bytes:
        """Its canonical bytes. Raises NotFound."""
        for entry in self._read().values():
            if _id(entry["release"]) == release_id:
                return str(entry["release"]).encode()
        raise NotFound("release_id", f"no copy of release {release_id} here")

    def segment(self, digest: str) -> SegmentRecord | None:
        """Raises Unavailable: chunks come from the store only."""
        raise Unavailable("store", f"is away, and segment {digest} is not in the local cache")

    def get_chunk(self, digest: str, index: int) -> bytes:
        """Raises Unavailable, as `segment`."""
        raise Unavailable("store", f"is away, and chunk {index} of segment {digest} is not in the local cache")

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            record = json.loads(self._path.read_text())
            return {
                str(name): {"version": entry["version"], "release": entry["release"]} for name, entry in record.items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}


def _id(release: str) -> str:
    return hashlib.sha256(release.encode()).hexdigest()
