"""A stack of its own for faults: what a test kills here, no other test uses."""

from collections.abc import Iterator

import pytest

from tests.contract.tiny_service import tiny_service_checkpoint
from tests.contract.tiny_stack import TinyStack, tiny_stack


@pytest.fixture(scope="module", params=["grpc", "link"])
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyStack]:
    links = tmp_path_factory.mktemp("l") if request.param == "link" else "-"
    checkpoint = tiny_service_checkpoint(tmp_path_factory.mktemp("tiny"))
    with tiny_stack(checkpoint, tmp_path_factory.mktemp("stack"), link_dir=links) as running:
        yield running
