"""A build is named by the sources and the libraries of what computes."""

from __future__ import annotations

from pathlib import Path

import numba
import pytest
import torch

from models import build
from models.build import build_of
from models.load import load_backend
from tests.helpers.tiny_models import tiny_checkpoint


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of kernels in place of the real one; builds are read anew."""
    (tmp_path / "cpu").mkdir()
    for name, text in (("tile.py", "a = 1"), ("run.py", "b = 2")):
        (tmp_path / "cpu" / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(build, "_HERE", tmp_path)
    build_of.cache_clear()
    yield tmp_path
    build_of.cache_clear()


def named(sources: Path) -> str:
    build_of.cache_clear()
    return build_of("cpu-llvm")


def test_any_change_of_a_kernel_makes_another_build(sources: Path) -> None:
    first = named(sources)
    assert named(sources) == first
    (sources / "cpu" / "tile.py").write_text("a = 3", encoding="utf-8")
    changed = named(sources)
    (sources / "cpu" / "run.py").rename(sources / "cpu" / "ran.py")
    moved = named(sources)
    (sources / "cpu" / "more.py").write_text("", encoding="utf-8")
    assert len({first, changed, moved, named(sources)}) == 4


def test_another_library_makes_another_build(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = named(sources)
    assert f"numba {numba.__version__}" in first
    monkeypatch.setattr(build, "version", lambda library: "0.0.1")
    assert "numba 0.0.1, llvmlite 0.0.1" in named(sources)


def test_a_loaded_backend_names_the_build_of_its_implementation(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path)
    builds = {
        name: load_backend(checkpoint, implementation=name, kv_budget_tokens=64, threads=1).info.build
        for name in ("cpu-llvm", "cpu-torch")
    }
    assert builds == {name: build_of(name) for name in builds}
    assert len(set(builds.values())) == 2
    assert f"torch {torch.__version__}" in builds["cpu-torch"]
