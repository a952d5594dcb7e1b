"""The golden cases, read where they are and skipped where they are not.

A folder may hold other cases than the one this was written with, under other names: so tests ask for all there are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(os.environ.get("DRAFTPROOF_GOLDENS", Path(__file__).parents[2] / "../shared/goldens"))


def golden(name: str) -> Any:
    """The contents of one file; the test that asks is skipped where there is none."""
    path = FOLDER / name
    if not path.is_file():
        pytest.skip(f"golden cases are absent: {name} is not in DRAFTPROOF_GOLDENS or ../shared/goldens")
    return json.loads(path.read_text(encoding="utf-8"))


def golden_cases(
    name: str, pick: Callable[[Any], Mapping[str, Any] | list[Any]] = lambda file: file["cases"]
) -> pytest.MarkDecorator:
    """Parametrises `case` by every case of a file, by name or number; one that skips where the file is absent."""
    if not (FOLDER / name).is_file():
        # An empty list would skip without saying why.
        absent = pytest.mark.skip(reason=f"golden cases are absent: {name} is not in DRAFTPROOF_GOLDENS")
        return pytest.mark.parametrize("case", [pytest.param(None, marks=absent, id="absent")])
    found = pick(golden(name))
    items = list(found.items()) if isinstance(found, Mapping) else [(str(i), case) for i, case in enumerate(found)]
    assert items, f"{name} holds no case"
    return pytest.mark.parametrize("case", [pytest.param(case, id=key) for key, case in items])
