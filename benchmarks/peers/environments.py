"""Environments of peers: each a virtual environment of its own with pinned packages, made on first use.

None of the pins brings a GPU stack: a peer gets neither torch nor anything that asks for it. What cannot be installed is
reported as missing with the reason; a benchmark goes on without it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


class PeerMissing(Exception):
    """A peer that cannot run here. The text says why."""


@dataclass(frozen=True)
class Environment:
    """requirements: exact pins. from_source: names built here, for this machine's instructions. variables: of the build."""

    name: str
    requirements: tuple[str, ...]
    from_source: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Changes with anything that makes another environment."""
        made_of = (self.requirements, self.from_source, sorted(self.variables.items()))
        return hashlib.sha256(repr(made_of).encode()).hexdigest()


LLAMA_CPP = Environment("llama_cpp", ("xllamacpp==2026.10.11549",))
OPENVINO = Environment(
    "openvino",
    (
        "openvino==2026.4.1",
        "openvino-genai==2026.4.1.0",
        "openvino-tokenizers==2026.4.1.0",
        "openvino-telemetry==2025.2.0",
        "numpy==2.4.6",
    ),
)


def installed(environment: Environment, folder: Path) -> Path:
    """The environment's python under `folder`, installed if that was not done.

    Raises PeerMissing with the end of what the installer said; a failed attempt is made anew on the next call.
    """
    home = folder / environment.name
    python, stamp = home / "bin" / "python", home / "installed"
    if stamp.exists() and stamp.read_text() == environment.digest:
        return python
    _run([sys.executable, "-m", "venv", "--clear", str(home)], environment)
    options = [option for name in environment.from_source for option in ("--no-binary", name)]
    # Without dependencies: the pins are the whole environment.
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--no-deps"]
    _run([*pip, *options, *environment.requirements], environment)
    stamp.write_text(environment.digest)
    return python


def _run(command: list[str], environment: Environment) -> None:
    try:
        done = subprocess.run(
            command, env={**os.environ, **environment.variables}, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise PeerMissing(f"{environment.name}: {error}") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise PeerMissing(f"{environment.name}: {' / '.join(said[-3:]) or f'exit {done.returncode}'}")
