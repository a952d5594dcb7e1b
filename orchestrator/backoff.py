"""When a source that failed is asked again: counted in rounds, so that a replay takes the same decisions."""

from __future__ import annotations

LONGEST_SKIP = 8


class Backoff:
    """Skips 1, 2, 4, then 8 rounds after consecutive failures; one answer resets it."""

    def __init__(self) -> None:
        self._failures = 0
        self._resume = 0
        self._dropped = False

    def ready(self, round_number: int) -> bool:
        """Whether to ask in this round."""
        return not self._dropped and round_number >= self._resume

    def failed(self, round_number: int) -> None:
        """The source failed in this round."""
        skip = min(LONGEST_SKIP, 1 << self._failures)
        self._failures += 1
        self._resume = round_number + 1 + skip

    def answered(self) -> None:
        """The source answered in order."""
        self._failures = 0

    def drop(self) -> None:
        """Never ask again in this request."""
        self._dropped = True
