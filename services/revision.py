"""Which source this is: what a release names as its builder."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

PACKAGE = "draftproof"
ROOT = Path(__file__).resolve().parents[1]
_GIT_S = 10.0


@cache
def builder_commit() -> str:
    """The git revision of the source that runs, with "+changed" where files differ from it; of an installed package the
    revision it was installed from, where that is known; else its version.
    """
    return _of_checkout(ROOT) or _of_package()


def _of_checkout(root: Path) -> str:
    # A package inside somebody else's repository is no checkout of ours.
    if not (root / ".git").exists():
        return ""
    revision = _git(root, "rev-parse", "HEAD")
    if not revision:
        return ""
    return f"{revision}+changed" if _git(root, "status", "--porcelain", "--untracked-files=no") else revision


def _git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=True, timeout=_GIT_S
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _of_package() -> str:
    try:
        installed = distribution(PACKAGE)
    except PackageNotFoundError:
        return f"{PACKAGE} from source"
    return _installed_from(installed) or f"{PACKAGE} {installed.version}"


def _installed_from(installed: Distribution) -> str:
    """The revision in the record that installers leave (PEP 610)."""
    try:
        record = json.loads(installed.read_text("direct_url.json") or "{}")
        return str(record["vcs_info"]["commit_id"])
    except (ValueError, KeyError, TypeError):
        return ""
