"""Openings on their way to a session: arrived, waiting for KV, in prefill.

Who fits the budget as such, but not now, waits in order of arrival. Later ones that do fit go before the oldest that waits,
so that a large prompt does not keep small ones out of room that it cannot use; after `OVERTAKES` of them nobody does, and
all that is freed is kept for it. So an opening at place n of the queue waits for at most n * (OVERTAKES + 1) others.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator

from contracts.errors import ResourceExhausted
from verifier.engine import Engine
from verifier.faults import typed
from verifier.jobs import Entry, deliver

OVERTAKES = 8
# Tries in vain a turn: among many that wait, each costs a look at the shared prefixes.
_TRIES = 16


class Openings:
    """All methods but `admit`, `next` and `finish` are called under `lock`; those three by whoever takes the turn, without
    it. clock: nanoseconds.
    """

    def __init__(self, engine: Engine, lock: threading.Condition, clock: Callable[[], int]) -> None:
        self._engine = engine
        self._lock = lock
        self._clock = clock
        self._arrived: deque[Entry] = deque()
        self._waiting: deque[Entry] = deque()
        self._filling: deque[Entry] = deque()
        self._overtaken = 0
        self._tried_at = -1
        self.retry_after_ms = 0

    def __bool__(self) -> bool:
        """Whether a turn has something to do here."""
        return bool(self._arrived or self._filling) or self._may_fit()

    def __iter__(self) -> Iterator[Entry]:
        return itertools.chain(self._filling, self._waiting, self._arrived)

    @property
    def under_way(self) -> int:
        """How many have arrived or are in prefill: they end without anybody's help."""
        return len(self._arrived) + len(self._filling)

    @property
    def waiting(self) -> int:
        """How many wait for KV."""
        return len(self._waiting)

    def append(self, entry: Entry) -> None:
        self._arrived.append(entry)

    def clear(self) -> None:
        for queue in (self._arrived, self._waiting, self._filling):
            queue.clear()

    def remove(self, entry: Entry) -> bool:
        """Takes an opening out; False if it is not here any more."""
        for queue in (self._arrived, self._waiting, self._filling):
            if entry in queue:
                if queue is self._waiting:
                    self._left(entry)
                queue.remove(entry)
                return True
        return False

    def admit(self) -> bool:
        """Gives sessions to those that fit and refuses those that never will; whether there was anything to do."""
        with self._lock:
            again = self._may_fit()
            if not self._arrived and not again:
                return False
            candidates = [*(self._waiting if again else ()), *self._arrived]
        self._tried_at = self._engine.sessions.room
        failed = 0
        for entry in candidates:
            if failed < _TRIES or entry.checked is None:
                failed += not self._try(entry, last=failed >= _TRIES)
        return True

    def next(self) -> Entry | None:
        """The opening whose prompt gets the turn: one after another, but for those that wait for another's prefill, whose
        rows they will take over."""
        with self._lock:
            if not self._filling:
                return None
            entry = next((e for e in self._filling if not self._engine.awaits(e.session_id)), self._filling[0])
            self._filling.rotate(-1 - self._filling.index(entry))
            return entry

    def finish(self, entry: Entry, outcome: object) -> None:
        """Answers an opening, unless it was cancelled."""
        with self._lock:
            here = self.remove(entry)
        if here:
            deliver(entry, outcome)

    def _try(self, entry: Entry, *, last: bool) -> bool:
        """False where the opening has to wait. last: it is only looked at."""
        try:
            if entry.checked is None:
                entry.checked = self._engine.check(entry.job.request)
            if not self._turn_of(entry, last=last):
                return False
            self._engine.sessions.admit(entry.checked, queue_us=(self._clock() - entry.submitted_ns) / 1e3)
        except ResourceExhausted as full:
            if full.field != "kv_tokens":
                self.finish(entry, full)
                return True
            self.retry_after_ms = full.retry_after_ms or 0
            self._wait(entry)
            return False
        except Exception as error:
            self.finish(entry, typed(error))
            return True
        self._fill(entry)
        return True

    def _turn_of(self, entry: Entry, *, last: bool) -> bool:
        """Whether the opening may be admitted now; it waits if not. `begun` from here on, so that who cancels closes it."""
        with self._lock:
            oldest = self._waiting[0] if self._waiting else entry
            # A repeat of a call takes no room, and who is answered may be the one that room is waited for.
            kept_back = last or self._overtaken >= OVERTAKES
            if entry is not oldest and kept_back and entry.session_id not in self._engine.sessions:
                self._move(entry, self._waiting)
                return False
            entry.begun = True
            return True

    def _wait(self, entry: Entry) -> None:
        with self._lock:
            entry.begun = False
            self._move(entry, self._waiting)

    def _fill(self, entry: Entry) -> None:
        with self._lock:
            if self._waiting and entry is not self._waiting[0]:
                self._overtaken += 1
            self._move(entry, self._filling)

    def _move(self, entry: Entry, to: deque[Entry]) -> None:
        """To another queue's end; an opening that was cancelled meanwhile is in none."""
        if entry in to:
            return
        if entry in self._waiting:
            self._left(entry)
            self._waiting.remove(entry)
        elif entry in self._arrived:
            self._arrived.remove(entry)
        else:
            return
        to.append(entry)

    def _left(self, entry: Entry) -> None:
        if entry is self._waiting[0]:
            # Those behind it are looked at again: what was kept for it is theirs.
            self._overtaken, self._tried_at = 0, -1

    def _may_fit(self) -> bool:
        return bool(self._waiting) and self._tried_at != self._engine.sessions.room
