"""Whether a source is worth asking: paused while it costs more than it brings, and asked again ever more rarely.

Hysteresis on purpose: one bad round does not pause a source and one good one does not bring it back for long, so plans do
not swing between rounds.
"""

from __future__ import annotations

_SMOOTHING = 1.0 / 16.0
_PROBE_WEIGHT = 0.25
_FIRST_PAUSE = 4
_LONGEST_PAUSE = 32
_ROUNDS_BEFORE = 12


class SourceWorth:
    """One source over one session, in rounds of one kind. Times in microseconds.

    Its worth is a running mean of what a round gained by it. Below `-margin` (after some rounds) it is paused for 4 rounds,
    then asked once; still not worth it, for 8, 16, 32. Above `+margin` it is back, and the next pause is short again.
    before_us: what it was worth in earlier sessions, taken as if those rounds had been this session's; None where there
    were none, and every session would have to find out anew what a dear source costs it. paused: whether the session
    begins with a pause.
    """

    def __init__(self, before_us: float | None = None, *, paused: bool = False) -> None:
        self.worth_us = before_us or 0.0
        self._rounds = 0 if before_us is None else _ROUNDS_BEFORE
        self._pause = _FIRST_PAUSE
        self._paused = 0
        self._probing = False
        if paused:
            self._begin_pause()

    def next_round_asks(self) -> bool:
        """Goes on to the round that comes: whether that asks it."""
        self._paused -= 1
        return self._paused < 0

    def judge(self, gained_us: float, margin_us: float) -> None:
        """After a round in which it was asked."""
        self._rounds += 1
        # A probe after a pause counts for more: the text has moved on since.
        weight = _PROBE_WEIGHT if self._probing else max(_SMOOTHING, 1.0 / (self._rounds + 1.0))
        self.worth_us += (gained_us - self.worth_us) * weight
        if self._rounds < _ROUNDS_BEFORE:
            return
        if self.worth_us < -margin_us:
            self._begin_pause()
        elif self.worth_us > margin_us:
            self._pause = _FIRST_PAUSE
            self._probing = False

    def _begin_pause(self) -> None:
        self._paused = self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._probing = True
