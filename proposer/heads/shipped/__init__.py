"""Trained heads that come with the code, one directory a target model."""

from __future__ import annotations

from pathlib import Path


def shipped_head(model: str) -> Path | None:
    """The package directory for a model's name as settings give it; None where none is shipped."""
    directory = Path(__file__).parent / model
    return directory if (directory / "manifest.json").is_file() else None
