"""The command line imports what the asked command needs, and shows all commands."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from services.cli import COMMANDS, build_app


def test_help_shows_every_command_with_its_first_sentence() -> None:
    done = CliRunner().invoke(build_app(), ["--help"], env={"COLUMNS": "160"})
    assert done.exit_code == 0
    for name in COMMANDS:
        line = next(line for line in done.output.splitlines() if line.startswith(f"│ {name} "))
        assert len(line.strip("│ ").removeprefix(name).strip()) > 20


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_of_its_own(name: str) -> None:
    done = CliRunner().invoke(build_app(), [name, "--help"], env={"COLUMNS": "120"})
    assert done.exit_code == 0
    assert "--install-completion" not in done.output


def test_an_unknown_command_is_a_usage_error() -> None:
    done = CliRunner().invoke(build_app(), ["serv"])
    assert done.exit_code == 2
    assert "No such command" in done.output


def test_a_service_that_starts_imports_no_other_command_and_no_model_library() -> None:
    """Four processes start at once with `up`; what each imports in vain delays the engine."""
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from services.cli import build_app\n"
        "CliRunner().invoke(build_app(), ['serve', 'verifier', '--help'])\n"
        "print(sorted(name for name in sys.modules if name.startswith('services.cli.')))\n"
        "print([name for name in ('numpy', 'torch', 'numba', 'grpc', 'redis') if name in sys.modules])\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["['services.cli.serve']", "[]"]
