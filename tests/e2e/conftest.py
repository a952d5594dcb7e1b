"""The tiny checkpoint for tests over whole stacks."""

from pathlib import Path

import pytest

from tests.contract.tiny_service import tiny_service_checkpoint


@pytest.fixture(scope="module")
def tiny_checkpoint_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_service_checkpoint(tmp_path_factory.mktemp("tiny"))
