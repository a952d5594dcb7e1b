"""One tiny checkpoint for all draft tests; a fresh backend for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from models.backend import Backend
from models.load import load_backend
from tests.helpers.tiny_models import tiny_checkpoint


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Passes of tiny models spend their time waiting for each other's threads otherwise."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("draft"))


@pytest.fixture
def backend(checkpoint: Path) -> Backend:
    return load_backend(checkpoint, kv_budget_tokens=1024, poison=True, implementation="cpu-torch")
