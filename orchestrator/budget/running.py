"""A running mean that a single stall does not carry away."""

from __future__ import annotations

_SHARE = 1.0 / 8.0
_WIDEST = 0.5


class Running:
    """Of a positive quantity: the first value, then an eighth of every difference, which counts for half the mean at most.

    A process that was stopped for seconds reports one round of seconds; it moves the mean by a sixteenth. A lasting change
    is followed all the same, by as much a round.
    """

    def __init__(self, floor: float) -> None:
        """floor: differences of this size always count in full."""
        self.value = 0.0
        self._floor = floor
        self._known = False

    @property
    def known(self) -> bool:
        return self._known

    def add(self, value: float) -> None:
        if not self._known:
            self.value, self._known = value, True
            return
        widest = max(self._floor, _WIDEST * self.value)
        self.value += _SHARE * min(max(value - self.value, -widest), widest)
