"""What a data set's shards hold, by SHA-256: recorded as each is written, compared as each is read.

    contents.json   {shard's name: SHA-256 hex of the file}

A shard without an entry (a data set made before this file was kept, or a writer that ended between the two) is hashed and
entered at its first reading; from then on it is held to that.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from contracts.errors import DataLoss

CONTENTS = "contents.json"


class ShardContents:
    """The hashes of the shards in `directory`. Raises DataLoss where the record cannot be read."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / CONTENTS
        # Files already hashed by this process, by what changes with their bytes.
        self._seen: dict[str, tuple[tuple[int, int, int], str]] = {}

    def of(self, shard: Path) -> str:
        """SHA-256 hex of the shard. Raises DataLoss where it is not what was recorded."""
        found, recorded = self._hash(shard), self._recorded()
        if shard.name not in recorded:
            # A data set that may only be read is hashed by every reader anew, and held to nothing.
            if os.access(self._path.parent, os.W_OK):
                self._write(recorded | {shard.name: found})
        elif recorded[shard.name] != found:
            raise DataLoss(f"data.{shard.name}", f"{shard} is not the file that {CONTENTS} describes")
        return found

    def enter(self, shard: Path) -> None:
        """Record a shard that was just written."""
        self._write(self._recorded() | {shard.name: self._hash(shard)})

    def _hash(self, shard: Path) -> str:
        status = shard.stat()
        key = (status.st_size, status.st_mtime_ns, status.st_ino)
        known = self._seen.get(shard.name)
        if known is None or known[0] != key:
            with shard.open("rb") as stream:
                known = self._seen[shard.name] = (key, hashlib.file_digest(stream, "sha256").hexdigest())
        return known[1]

    def _recorded(self) -> dict[str, str]:
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise DataLoss("data", f"{self._path} is not JSON: {error}") from error
        if not isinstance(found, dict):
            raise DataLoss("data", f"{self._path} is no list of shards")
        return found

    def _write(self, entries: dict[str, str]) -> None:
        unfinished = self._path.with_suffix(f".unfinished-{os.getpid()}")
        unfinished.write_text(json.dumps(entries, indent=1, sort_keys=True), encoding="utf-8")
        os.replace(unfinished, self._path)
