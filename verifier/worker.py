"""The pass loop of the engine process: jobs in from any thread, turns taken between rounds and prefills.

Continuous batching: every verify job that arrived while a pass ran joins the next one. A turn is one pass of rounds and
some rows of one prompt in it, as many as make it longer by a stated measure (verifier/prefill.py), so neither a stream of
rounds nor a long prompt starves the other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from contracts.errors import DraftproofError, ResourceExhausted, Unavailable
from contracts.hidden import HiddenRows
from contracts.receipt import FinishReason, Receipt
from verifier.engine import Engine
from verifier.faults import typed
from verifier.gathering import Gathering
from verifier.jobs import Close, Entry, ExportHidden, GetReceipt, Job, Open, Verify, deliver
from verifier.openings import Openings
from verifier.verify_pass import Clock

T = TypeVar("T")
_log = logging.getLogger(__name__)
_LEASE_CHECK_NS = 1_000_000_000
# How long a prompt leaves the target idle for the rounds that follow those just answered.
_PATIENCE_S = 0.005


class Worker:
    """Drives one engine, a turn at a time: by the thread of `run()` until `stop()`, by `lend()`, or by hand with `step()`.

    max_queue: verify and open jobs that may wait, prompts in prefill included, and for an open those that wait for KV
    (verifier/openings.py). max_pass_rows: rows of a batch, which the first round of a batch may exceed. clock:
    nanoseconds, the engine's.
    """

    def __init__(
        self, engine: Engine, *, max_queue: int = 256, max_pass_rows: int = 512, clock: Clock = time.perf_counter_ns
    ) -> None:
        self._engine = engine
        self._max_queue = max_queue
        self._max_pass_rows = max_pass_rows
        self._clock = clock
        self._changed = threading.Condition()
        self._turn = threading.Lock()
        self._stopping = False
        self._urgent: deque[Entry] = deque()
        self._lookups: deque[Entry] = deque()
        self._rounds: deque[Entry] = deque()
        self._openings = Openings(engine, self._changed, clock)
        self._queues = (self._urgent, self._rounds, self._openings, self._lookups)
        self._turn_ms = 0.0
        self._more_to_come = False
        self._gathering = Gathering()
        self._next_lease_check_ns = 0

    def submit(self, job: Job[T], callback: Callable[[T | DraftproofError], None], *, wake: bool = True) -> Entry:
        """Queues a job; `callback` gets its answer or its error, once, on the thread whose turn serves it. wake: whether to
        wake the thread of `run`; a caller that does not must call `lend` next.

        Thread-safe. Raises ResourceExhausted with a hint if the queue is full and Unavailable if the worker is stopping.
        """
        entry = Entry(job, callback, self._clock())
        with self._changed:
            if self._stopping:
                raise Unavailable("", "the verifier is draining")
            if isinstance(job, (Verify, Open)):
                waiting = len(self._rounds) + self._openings.under_way
                if isinstance(job, Open):
                    # They do not count against rounds: KV is freed by sessions whose rounds go on.
                    waiting += self._openings.waiting
                if waiting >= self._max_queue:
                    message = f"{waiting} jobs wait, at most {self._max_queue}"
                    raise ResourceExhausted("queue", message, retry_after_ms=self._retry_after_ms(job))
            self._queue_of(job).append(entry)
            if isinstance(job, Verify):
                self._gathering.came(entry.session_id, entry.submitted_ns)
            elif isinstance(job, Close):
                self._gathering.ended(job.session_id)
            if wake:
                self._changed.notify()
        return entry

    def lend(self) -> None:
        """Takes one turn on the calling thread if nobody is in one and no round is waited for, and leaves the rest to the
        thread of `run`.

        Waking a thread costs more than a round's bookkeeping, so whoever brings a job to an idle worker runs it.
        """
        if not self._gathers() and self._turn.acquire(blocking=False):
            try:
                if not self._stopping:
                    self.step()
            finally:
                self._turn.release()
        with self._changed:
            if any(self._queues):
                self._changed.notify()

    def cancel(self, entry: Entry) -> bool:
        """Takes a job back: True if it will not run, and its callback not be called. A prompt in prefill is abandoned.

        Thread-safe. A round already in its pass runs to its end, and its receipt is kept. A close is never taken back:
        whoever is cancelled while cleaning up still wants the KV freed.
        """
        with self._changed:
            queue = self._queue_of(entry.job)
            if entry not in queue or isinstance(entry.job, Close):
                return False
            queue.remove(entry)
            if entry.begun and not any(other.session_id == entry.session_id for other in self._openings):
                self._urgent.append(Entry(Close(entry.session_id, unless_open=True), _ignore, self._clock()))
            if any(self._queues):
                self._changed.notify()
            return True

    def run(self) -> None:
        """Takes turns until `stop()`; then answers what still waits with Unavailable: safe to retry elsewhere."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or any(self._queues), timeout=_LEASE_CHECK_NS / 1e9)
                if self._only_prompts():
                    # Rounds follow each other within milliseconds: one that finds a pass of a prompt under way waits for
                    # it, one that is waited for shares its pass.
                    came = self._changed.wait_for(
                        lambda: self._stopping or not self._only_prompts(), timeout=_PATIENCE_S
                    )
                    self._more_to_come = self._more_to_come and came
                if self._gathers():
                    left = self._gathering.left(self._clock())
                    self._changed.wait_for(lambda: self._stopping or not self._gathers(), timeout=left / 1e9)
                if self._stopping:
                    break
            with self._turn:
                if not self._only_prompts():
                    self.step()
        with self._turn, self._changed:
            waiting = [entry for queue in self._queues for entry in queue]
            for queue in self._queues:
                queue.clear()
        for entry in waiting:
            deliver(entry, Unavailable("", "the verifier is draining"))

    def stop(self) -> None:
        """Ends `run()` after the turn in progress. Thread-safe."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def step(self) -> bool:
        """One turn: urgent jobs, lapsed leases, admissions, one pass of rounds and prompt rows, receipts and hidden rows.

        False if there was nothing to do.
        """
        started = self._clock()
        urgent = self._serve_urgent()
        self._expire(started)
        admitted = self._openings.admit()
        ran = self._run()
        if ran:
            self._turn_ms = (self._clock() - started) / 1e6
        return self._serve_lookups() or ran or urgent or admitted

    def _serve_urgent(self) -> bool:
        if not self._urgent:
            return False
        with self._changed:
            entries = list(self._urgent)
            self._urgent.clear()
        for entry in entries:
            job = entry.job
            if isinstance(job, Close):
                call: Callable[[], Any] = partial(
                    self._engine.close_session, job.session_id, unless_open=job.unless_open
                )
            else:
                call = self._engine.describe
            deliver(entry, _outcome(call))
        return bool(entries)

    def _expire(self, now_ns: int) -> None:
        if now_ns >= self._next_lease_check_ns:
            self._next_lease_check_ns = now_ns + _LEASE_CHECK_NS
            # A lease bounds the caller's silence; one whose call waits here is not silent, however long that takes.
            with self._changed:
                waiting = {entry.session_id for entry in (*self._rounds, *self._openings)}
            lapsed = self._engine.sessions.expire(now_ns, waiting=waiting)
            if lapsed:
                _log.warning("leases lapsed: %s", ", ".join(lapsed))

    def _run(self) -> bool:
        """One pass of the rounds that wait, with prompt rows in it where the engine joins them; else a prompt's own."""
        entries = self._next_rounds()
        # Where they cannot share a pass, prompts wait until rounds have had their part of the time.
        opening = None if entries and self._engine.owes_rounds else self._openings.next()
        if entries:
            now = self._clock()
            requests = [entry.job.request for entry in entries]
            waits = [(now - entry.submitted_ns) / 1e3 for entry in entries]
            joined = opening if self._engine.joins_prompts else None
            if joined is None:
                outcomes = _outcome(partial(self._engine.verify_many, requests, queued_us=waits))
            else:
                prompt = joined.session_id
                turn = _outcome(partial(self._engine.turn, requests, queued_us=waits, prompt=prompt))
                outcomes, opened = (turn, None) if isinstance(turn, DraftproofError) else turn
            if not isinstance(outcomes, DraftproofError):
                self._await_next(entries, outcomes)
            for index, entry in enumerate(entries):
                deliver(entry, outcomes if isinstance(outcomes, DraftproofError) else outcomes[index])
            self._more_to_come = True
            if joined is not None:
                if opened is not None:
                    self._openings.finish(joined, opened)
                return True
        if opening is not None:
            answer = _outcome(partial(self._engine.prefill, opening.session_id))
            if answer is not None:
                self._openings.finish(opening, answer)
        return bool(entries) or opening is not None

    def _next_rounds(self) -> list[Entry]:
        entries: list[Entry] = []
        rows = 0
        with self._changed:
            while self._rounds:
                rows += _rows(self._rounds[0])
                if entries and rows > self._max_pass_rows:
                    break
                entries.append(self._rounds.popleft())
        return entries

    def _await_next(self, entries: Sequence[Entry], outcomes: Sequence[Receipt | DraftproofError]) -> None:
        going_on = [
            entry.session_id
            for entry, outcome in zip(entries, outcomes, strict=True)
            if isinstance(outcome, Receipt) and outcome.finish is FinishReason.NONE
        ]
        with self._changed:
            self._gathering.answered(going_on, self._engine.plain_step_us, self._clock())

    def _gathers(self) -> bool:
        """Whether rounds wait for others that follow those just answered, and nothing else is to do first."""
        return bool(self._rounds) and not self._urgent and self._gathering.left(self._clock()) > 0

    def _only_prompts(self) -> bool:
        """Whether there is nothing to do but prompts, while the rounds that follow those just answered are on their way."""
        return self._more_to_come and not (self._rounds or self._urgent or self._lookups)

    def _serve_lookups(self) -> bool:
        if not self._lookups:
            return False
        with self._changed:
            busy = {entry.session_id for entry in self._rounds}
            entries = [entry for entry in self._lookups if entry.session_id not in busy]
            for entry in entries:
                self._lookups.remove(entry)
        for entry in entries:
            deliver(entry, _outcome(partial(self._look_up, entry.job)))
        return bool(entries)

    def _look_up(self, job: GetReceipt | ExportHidden) -> Receipt | HiddenRows:
        if isinstance(job, GetReceipt):
            return self._engine.get_receipt(job.session_id, job.round_id)
        return self._engine.export_hidden(job.session_id, job.start, job.stop)

    def _queue_of(self, job: Job[Any]) -> deque[Entry] | Openings:
        if isinstance(job, Verify):
            return self._rounds
        if isinstance(job, Open):
            return self._openings
        return self._lookups if isinstance(job, GetReceipt | ExportHidden) else self._urgent

    def _retry_after_ms(self, job: Job[Any]) -> int:
        rows = sum(_rows(entry) for entry in self._rounds)
        turns_ms = max(1, round(self._turn_ms * (1 + rows / self._max_pass_rows)))
        return (
            max(turns_ms, self._openings.retry_after_ms)
            if isinstance(job, Open) and self._openings.waiting
            else turns_ms
        )


def _rows(entry: Entry) -> int:
    return len(entry.job.request.graph) + 1


def _outcome(call: Callable[[], T]) -> T | DraftproofError:
    try:
        return call()
    except Exception as error:
        return typed(error)


def _ignore(_: object) -> None:
    return None
