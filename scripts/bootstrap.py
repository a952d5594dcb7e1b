"""Makes the virtual environment from nothing: `python3 scripts/bootstrap.py [folder]`. Standard library only.

torch comes first and alone, after a dry run that shows what the registry would bring: on a machine without a GPU a CUDA
build (several gigabytes of nvidia packages) is refused instead of downloaded. DRAFTPROOF_TORCH_INDEX names an index
with CPU builds; DRAFTPROOF_ALLOW_CUDA_TORCH=1 takes the CUDA build all the same.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"


def torch_requirement() -> str:
    """The torch pin of the lock file."""
    return next(line.strip() for line in LOCK.read_text().splitlines() if line.startswith("torch=="))


def has_gpu() -> bool:
    return Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi") is not None


def pip(python: Path, *arguments: str) -> None:
    subprocess.run([str(python), "-m", "pip", "--disable-pip-version-check", *arguments], check=True, cwd=ROOT)


def index_options() -> list[str]:
    index = os.environ.get("DRAFTPROOF_TORCH_INDEX")
    return ["--index-url", index] if index else []


def refuse_cuda_on_a_cpu_machine(python: Path, requirement: str) -> None:
    """Exits with advice if installing `requirement` would pull CUDA packages onto a machine without a GPU."""
    if has_gpu() or os.environ.get("DRAFTPROOF_ALLOW_CUDA_TORCH") == "1":
        return
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        pip(python, "install", "--quiet", "--dry-run", "--report", str(report), *index_options(), requirement)
        names = [entry["metadata"]["name"].lower() for entry in json.loads(report.read_text())["install"]]
    cuda = [name for name in names if name.startswith(("nvidia-", "cuda-", "triton"))]
    if cuda:
        sys.exit(
            f"{requirement} from this registry is a CUDA build ({len(cuda)} packages such as {cuda[0]}), and this machine "
            "has no GPU.\nSet DRAFTPROOF_TORCH_INDEX to an index that has CPU builds, or DRAFTPROOF_ALLOW_CUDA_TORCH=1."
        )


def main() -> None:
    """Creates the environment if it is missing and brings it to the lock file's state."""
    if sys.version_info < (3, 11):  # noqa: UP036 - the interpreter that runs this is the one being judged
        sys.exit(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}")
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / ".venv")
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"Making a virtual environment in {folder}", flush=True)
        venv.EnvBuilder(with_pip=True).create(folder)
    requirement = torch_requirement()
    refuse_cuda_on_a_cpu_machine(python, requirement)
    print(f"Installing {requirement}", flush=True)
    pip(python, "install", *index_options(), requirement)
    print("Installing the pinned packages", flush=True)
    pip(python, "install", "-r", str(LOCK))
    pip(python, "install", "--no-deps", "--editable", str(ROOT))


if __name__ == "__main__":
    main()
