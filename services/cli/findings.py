"""What `draftproof doctor` finds."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version


@dataclass(frozen=True)
class Finding:
    """One line. level: ok, note (works, but know it) or bad (mend it). mend: what to do."""

    level: str
    what: str
    mend: str = ""


def installed(package: str) -> bool:
    """Whether a distribution of that name is here."""
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True
