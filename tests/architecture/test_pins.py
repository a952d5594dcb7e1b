"""Direct dependencies are pinned exactly, and the lock file agrees."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _lock() -> dict[str, str]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pairs = [line.split("==") for line in lines if "==" in line and not line.startswith("#")]
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pairs}


def test_every_direct_dependency_is_pinned_and_locked_at_the_same_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lock = _lock()
    for requirement in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
        name, _, version = requirement.partition("==")
        assert version, f"{requirement} is not pinned"
        assert lock[re.sub(r"[-_.]+", "-", name).lower()] == version


def test_the_lock_file_pulls_no_cuda_package() -> None:
    assert not [name for name in _lock() if name.startswith(("nvidia-", "cuda-"))]
