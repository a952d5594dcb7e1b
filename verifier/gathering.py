"""Which rounds a pass waits for: those that follow the rounds just answered, for a part of a pass's time.

They come back within milliseconds, one after another. A pass that begins with the first of them makes all others wait for it
whole, and reads every weight for one row; after a few such passes sessions go in two groups that take turns, each of which
waits for the other's pass. Waiting for at most half of a one-row pass costs less than the pass that it saves.
"""

from __future__ import annotations

from collections.abc import Iterable

# Of a one-row pass.
_PART = 0.5


class Gathering:
    """The sessions that are waited for. Who comes back later than the window is not waited for until it came back in time
    again, so one with slow sources holds up nobody. Not thread-safe. Times in nanoseconds.
    """

    def __init__(self) -> None:
        self._awaited: set[str] = set()
        self._late: set[str] = set()
        self._answered: dict[str, int] = {}
        self._window = 0
        self._ends = 0

    def answered(self, sessions: Iterable[str], plain_step_us: float, now: int) -> None:
        """A pass has answered rounds of these sessions, which go on; called before the answers leave."""
        self._late |= self._awaited
        self._window = int(plain_step_us * 1e3 * _PART)
        self._ends = now + self._window
        self._awaited = set(sessions)
        self._answered.update(dict.fromkeys(self._awaited, now))
        self._awaited -= self._late

    def came(self, session_id: str, now: int) -> None:
        """The session's next round is here."""
        self._awaited.discard(session_id)
        answered = self._answered.pop(session_id, None)
        if answered is not None:
            (self._late.discard if now - answered <= self._window else self._late.add)(session_id)

    def ended(self, session_id: str) -> None:
        """No round of it will follow."""
        self._awaited.discard(session_id)
        self._late.discard(session_id)
        self._answered.pop(session_id, None)

    def left(self, now: int) -> int:
        """How much longer the next pass waits; 0: not at all."""
        return max(0, self._ends - now) if self._awaited else 0
