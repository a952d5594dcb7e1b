"""Generates the Python stubs beside protos/draftproof/v1/*.proto: python scripts/generate_stubs.py [--out DIRECTORY]

Imports in the .proto files are rooted at the repository, so the stubs import each other without rewriting.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLUGINS = ("protoc-gen-mypy", "protoc-gen-mypy_grpc")


def generate(out: Path) -> None:
    """Writes the stubs under `out`. Raises CalledProcessError with protoc's words shown on failure."""
    protos = sorted(ROOT.glob("protos/draftproof/v1/*.proto"))
    _protoc(out, ("python", "mypy"), protos)
    _protoc(out, ("grpc_python", "mypy_grpc"), [path for path in protos if "\nservice " in path.read_text()])


def _protoc(out: Path, kinds: tuple[str, ...], protos: list[Path]) -> None:
    # protoc looks for plugins on PATH, which need not hold this interpreter's scripts.
    plugins = [f"--plugin={name}={Path(sys.executable).parent / name}" for name in PLUGINS]
    outputs = [f"--{kind}_out={'quiet:' if 'mypy' in kind else ''}{out}" for kind in kinds]
    names = [path.relative_to(ROOT).as_posix() for path in protos]
    command = [sys.executable, "-W", "ignore", "-m", "grpc_tools.protoc", "-I", ".", *plugins, *outputs, *names]
    subprocess.run(command, check=True, cwd=ROOT)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT)
    generate(parser.parse_args().out)
