"""What every layout is read into, and how its configuration is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from contracts.errors import FailedPrecondition, InvalidArgument
from proposer.heads.vocabulary import DraftVocabulary


@dataclass(frozen=True)
class Found:
    """A head under a package's names; fields as in `proposer.heads.package.HeadManifest`. base: what the checkpoint says it
    was trained for, "" where it does not."""

    layout: str
    family: str
    offsets: tuple[int, ...]
    depth: int
    projection: str
    taps: tuple[str, ...]
    shape: Mapping[str, int]
    tensors: Mapping[str, Tensor]
    vocabulary: DraftVocabulary
    decoder: Mapping[str, Any] = field(default_factory=dict)
    base: str = ""


class Config:
    """A published config.json. Errors name the key as `published.config.<key>`."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw

    def count(self, key: str, default: int | None = None) -> int:
        """A positive integer."""
        value = self.raw.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InvalidArgument(f"published.config.{key}", f"must be a positive integer, got {value!r}")
        return value

    def flag(self, key: str, *, default: bool = False) -> bool:
        """A truth value."""
        value = self.raw.get(key, default)
        if not isinstance(value, bool):
            raise InvalidArgument(f"published.config.{key}", f"must be true or false, got {value!r}")
        return value

    def section(self, key: str) -> dict[str, Any]:
        """An object; empty where it is absent."""
        value = self.raw.get(key) or {}
        if not isinstance(value, dict):
            raise InvalidArgument(f"published.config.{key}", "must be an object")
        return value

    def only(self, **neutral: object) -> None:
        """Refuses, by name, keys that change the function and are set to anything but what leaves it alone (or null).

        Raises FailedPrecondition.
        """
        for key, value in neutral.items():
            if self.raw.get(key, value) not in (value, None):
                raise FailedPrecondition(
                    f"published.config.{key}", f"{self.raw[key]!r} makes another function than is computed here"
                )
