"""What a builder remembers of units it has built: one small file a unit, named by the digest of its input."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from retriever.release import SegmentEntry
from retriever.unit_result import UnitResult


class BuildNotes:
    """A directory of `<input digest>.json` files. Files appear whole; builders of either kind read each other's."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def get(self, input_sha256: str) -> UnitResult | None:
        """What was built from this input, if anything was and the note of it can be read."""
        return _read(self.directory / f"{input_sha256}.json")

    def everything(self) -> dict[str, UnitResult]:
        """All readable notes by input digest."""
        notes = {note.stem: _read(note) for note in sorted(self.directory.glob("*.json"))}
        return {digest: result for digest, result in notes.items() if result is not None}

    def put(self, result: UnitResult) -> None:
        """Remember the result. Call it once the segment is safe: a build that is cut off then leaves no unit half done."""
        note = self.directory / f"{result.input_sha256}.json"
        aside = note.with_suffix(f".{os.getpid()}.{result.segment.digest[:8]}.incoming")
        aside.write_text(json.dumps(asdict(result), sort_keys=True))
        aside.replace(note)


def _read(note: Path) -> UnitResult | None:
    # A note that a crash or another version left in an unknown form costs building the unit again.
    try:
        record = json.loads(note.read_text())
        return UnitResult(**{**record, "segment": SegmentEntry(**record["segment"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None
