"""Facts read from a checkpoint's small files, without loading it."""

from __future__ import annotations

import json
from pathlib import Path


def eos_ids(directory: Path) -> tuple[int, ...]:
    """End-of-sequence ids: generation_config.json's where it names them, else config.json's."""
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        found = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.is_file() else None
        if found is not None:
            return tuple(found) if isinstance(found, list) else (int(found),)
    return ()


def model_name(source: str) -> str:
    """What manifests call the model: a directory's own name, else the source as it was given."""
    return Path(source).resolve().name if Path(source).is_dir() else source


def origin(directory: Path) -> str:
    """Where the weights came from, for figures that depend on it; "" where the checkpoint does not say."""
    path = directory / "ORIGIN.md"
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""
