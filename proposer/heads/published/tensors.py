"""A published checkpoint's tensors, taken one by one by their names, so that none is missed and none left over."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from contracts.errors import DataLoss, InvalidArgument

CONFIG = "config.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
FIELD = "published.tensors"


def read_json(directory: Path) -> dict[str, Any]:
    """The directory's config.json. Raises InvalidArgument where it is absent or no JSON object."""
    path = directory / CONFIG
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidArgument("published.config", f"{directory} holds no {CONFIG}") from None
    except ValueError as error:
        raise InvalidArgument("published.config", f"{path} is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise InvalidArgument("published.config", f"{path} holds no object")
    return raw


class Tensors:
    """All tensors of a directory's safetensors files, in their own types. files: SHA-256 hex by name.

    Raises InvalidArgument where there are none, naming pickled weights (never opened: a pickle can run code), and for a name
    in two files; DataLoss for a file that cannot be read.
    """

    def __init__(self, directory: Path) -> None:
        paths = sorted(directory.glob("*.safetensors"))
        if not paths:
            pickled = sorted(path.name for path in directory.iterdir() if path.suffix in _PICKLES)
            what = f"{pickled[0]} is pickled and is not opened: use safetensors" if pickled else "no safetensors file"
            raise InvalidArgument("published.weights", f"{directory}: {what}")
        self._left: dict[str, Tensor] = {}
        self.files: dict[str, str] = {}
        for path in paths:
            try:
                with safe_open(path, framework="pt") as file:
                    names = list(file.keys())
                    for name in names:
                        if name in self._left:
                            raise InvalidArgument(f"published.tensors.{name}", "is in two files")
                        self._left[name] = file.get_tensor(name)
            except SafetensorError as error:
                raise DataLoss("published.weights", f"{path.name} cannot be read: {error}") from error
            with path.open("rb") as stream:
                self.files[path.name] = hashlib.file_digest(stream, "sha256").hexdigest()

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def rows(self, name: str) -> int:
        """Rows of that tensor; 0 where it is missing or a scalar."""
        found = self._left.get(name)
        return 0 if found is None or not found.dim() else len(found)

    def starts(self, prefix: str) -> bool:
        """Whether any tensor left has a name that begins so."""
        return any(name.startswith(prefix) for name in self._left)

    def take(self, name: str, *shape: int) -> Tensor:
        """That tensor, which no one else gets. Raises InvalidArgument where it is missing, misshapen or not of numbers."""
        found = self._left.pop(name, None)
        if found is None:
            raise InvalidArgument(FIELD, f"lacks {name}")
        if tuple(found.shape) != shape:
            raise InvalidArgument(f"{FIELD}.{name}", f"has shape {tuple(found.shape)}, not {shape}")
        if found.is_floating_point() and not bool(torch.isfinite(found).all()):
            raise InvalidArgument(f"{FIELD}.{name}", "holds values that are not finite")
        return found

    def finish(self, layout: str) -> None:
        """Raises InvalidArgument for what was not taken."""
        if self._left:
            names = ", ".join(sorted(self._left)[:5])
            raise InvalidArgument(FIELD, f"holds {names}, which no {layout} checkpoint has")
