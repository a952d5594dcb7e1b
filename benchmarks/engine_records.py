"""Measured units of a run, kept in a file so that a run that was cut goes on where it ended."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contracts.errors import InvalidArgument


class Records:
    """Units by key, in the order measured. A line of JSON each; the first line says what all were measured on.

    at_most_s: no unit is begun that long after `begin`, for who wants to end between two units.
    Raises InvalidArgument where the file's units were measured on something else.
    """

    def __init__(self, path: Path | None, about: Mapping[str, object], at_most_s: float = float("inf")) -> None:
        self._path = path
        self._at_most_s = at_most_s
        self._ends = float("inf")
        self._units: dict[str, Any] = {}
        self.cut = False
        if path is None:
            return
        header = json.dumps(dict(about))
        if path.exists():
            lines = path.read_text(encoding="utf-8").splitlines()
            if lines[0] != header:
                raise InvalidArgument("records", f"{path} was measured on {lines[0]}, not on {header}")
            self._units = dict(json.loads(line) for line in lines[1:])
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(header + "\n", encoding="utf-8")

    def begin(self) -> None:
        """Measuring begins: what was started and warmed until now takes nothing of the time."""
        self._ends = time.monotonic() + self._at_most_s

    def wants(self, key: str) -> bool:
        """Whether the unit is still to be measured and there is time to begin it."""
        if key in self._units:
            return False
        if time.monotonic() >= self._ends:
            self.cut = True
            return False
        return True

    def add(self, key: str, unit: Any) -> None:
        """A measured unit, of JSON's types."""
        self._units[key] = unit
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, unit]) + "\n")

    def of(self, prefix: str) -> list[Any]:
        """Units whose key begins with `prefix`, in the order measured."""
        return [unit for key, unit in self._units.items() if key.startswith(prefix)]
