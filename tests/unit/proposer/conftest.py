"""One tiny checkpoint for all draft tests; a fresh backend for each."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.backend import Backend
from models.load import load_backend
from tests.helpers.tiny_models import tiny_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("draft"))


@pytest.fixture
def backend(checkpoint: Path) -> Backend:
    return load_backend(checkpoint, kv_budget_tokens=1024, poison=True, implementation="cpu-torch")
