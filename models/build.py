"""What an implementation was built from: the versions that the bits and the times of its passes follow from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

_HERE = Path(__file__).parent
_TORCH_PASS = ("decoder.py", "passes.py", "kv.py", "rope.py")
# Sources of each implementation, below this folder, and the libraries that make machine code of them or run it.
_PARTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "cpu-llvm": (("cpu/*.py",), ("numba", "llvmlite")),
    "cpu-torch": (_TORCH_PASS, ("torch",)),
    "cuda-torch": (_TORCH_PASS, ("torch",)),
    "cuda-graph": (("cuda/*.py",), ("torch", "triton")),
    "transformers": (("fallback/*.py",), ("torch", "transformers")),
}


@cache
def build_of(implementation: str) -> str:
    """Such as "sources 3f9a1c2b77e0, numba 0.68.1, llvmlite 0.48.0": equal where the same code runs on the same libraries.

    Any change of the sources makes another build, comments included: whether a change costs time is not to be told from it.
    """
    patterns, libraries = _PARTS[implementation]
    return ", ".join([f"sources {_digest(patterns)}", *(f"{name} {_version(name)}" for name in libraries)])


def _digest(patterns: Sequence[str]) -> str:
    found = hashlib.sha256()
    for path in sorted({path for pattern in patterns for path in _HERE.glob(pattern)}):
        content = path.read_bytes()
        found.update(f"{path.name} {len(content)} ".encode() + content)
    return found.hexdigest()[:12]


def _version(library: str) -> str:
    if library == "torch":
        # Names what it was built for, which the package's version does not.
        return str(torch.__version__)
    try:
        return version(library)
    except PackageNotFoundError:
        return "absent"
