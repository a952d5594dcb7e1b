"""Facts read from a checkpoint's small files, without loading it."""

from __future__ import annotations

import json
from pathlib import Path

from models.checkpoint import DEFAULT_SOURCE, tokenizer_digest


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


def tokenizer_here(source: str, models_dir: Path) -> str | None:
    """Digest of the tokenizer of `source` (as `models.checkpoint.resolve` reads it), from what lies on this machine.

    None where it is not here: nothing is fetched. Raises InvalidArgument for a checkpoint without tokenizer files.
    """
    if Path(source).is_dir():
        return tokenizer_digest(Path(source))
    if source == DEFAULT_SOURCE:
        directory = models_dir / DEFAULT_SOURCE
        return tokenizer_digest(directory) if directory.is_dir() else None
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(source, cache_dir=models_dir / "hub", local_files_only=True)
    except (OSError, ValueError):
        return None
    return tokenizer_digest(Path(found))
