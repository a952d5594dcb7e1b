"""The golden cases, read where they are and skipped where they are not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(os.environ.get("DRAFTPROOF_GOLDENS", Path(__file__).parents[3] / "../shared/goldens"))


def golden(name: str) -> Any:
    path = FOLDER / name
    if not path.is_file():
        pytest.skip(f"golden cases are absent: {name} is not in DRAFTPROOF_GOLDENS or ../shared/goldens")
    return json.loads(path.read_text())
