"""Tiny checkpoints, loaded once; every backend here poisons dead KV rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from models.backend import Backend
from models.load import Dtype, Implementation
from tests.helpers.tiny_models import tiny_checkpoint
from tests.unit.models.steps import IMPLEMENTATIONS, Load, load_on_cpu


@pytest.fixture(scope="package", autouse=True)
def single_torch_thread() -> Iterator[None]:
    """Operators this small take longer to share among threads than to compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama with grouped heads (3 query heads per key-value head) and an odd vocabulary."""
    return tiny_checkpoint(tmp_path_factory.mktemp("tiny"), hidden=48, heads=6, kv_heads=2, head_dim=16, layers=3)


@pytest.fixture(scope="session")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose matrices are as deep as whole groups of 32 weights, as int8 and int4 need them."""
    return tiny_checkpoint(
        tmp_path_factory.mktemp("grouped"),
        hidden=96,
        heads=6,
        kv_heads=2,
        layers=3,
        intermediate_size=160,
    )


@pytest.fixture(scope="session")
def load(tiny: Path, grouped: Path) -> Load:
    """load(implementation, dtype): the tiny model, or the grouped one for int8 and int4; poisoned, one backend per pair."""
    loaded: dict[tuple[str, str], Backend] = {}

    def get(implementation: Implementation, dtype: Dtype = "float32") -> Backend:
        key = (implementation, dtype)
        if key not in loaded:
            loaded[key] = load_on_cpu(
                grouped if dtype in ("int8", "int4") else tiny,
                dtype=dtype,
                implementation=implementation,
                kv_budget_tokens=4096,
                poison=True,
            )
        return loaded[key]

    return get


@pytest.fixture(params=IMPLEMENTATIONS)
def backend(request: pytest.FixtureRequest, load: Load) -> Backend:
    return load(request.param)
