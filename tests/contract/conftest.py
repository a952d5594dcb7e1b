"""One tiny checkpoint and one verifier process for all contract tests of a run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.processes import ServiceProcess
from tests.contract.tiny_service import tiny_service_checkpoint
from tests.contract.tiny_stack import TinyStack, tiny_stack


@pytest.fixture(scope="session")
def tiny_checkpoint_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_service_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def verifier_process(
    tiny_checkpoint_directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServiceProcess]:
    directory, links = tmp_path_factory.mktemp("verifier"), tmp_path_factory.mktemp("links")
    process = ServiceProcess(
        "verifier",
        directory / "log",
        model=tiny_checkpoint_directory,
        dtype="float32",
        threads=1,
        kv_tokens=4096,
        cache_dir=directory,
        link_dir=links,
    )
    with process:
        yield process


@pytest.fixture(scope="session")
def stack(tiny_checkpoint_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyStack]:
    with tiny_stack(tiny_checkpoint_directory, tmp_path_factory.mktemp("stack")) as running:
        yield running
