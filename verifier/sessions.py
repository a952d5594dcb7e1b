"""The engine's sessions: who is admitted, who is known, and who goes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator

from contracts.errors import AlreadyExists, InvalidArgument, NotFound, ResourceExhausted
from models.laws import LawProcessor
from verifier.admission import Checked, kv_capacity, same_opening
from verifier.faults import typed
from verifier.kv_store import KVStore
from verifier.session import Session
from verifier.step_clock import StepClock


class Sessions:
    """By id. room: grows whenever KV may have been freed, or a prompt's rows become there to be shared."""

    def __init__(
        self, store: KVStore, steps: StepClock, clock: Callable[[], int], *, vocab_size: int, eos_ids: tuple[int, ...]
    ) -> None:
        self.room = 0
        self._store = store
        self._steps = steps
        self._clock = clock
        self._vocab_size = vocab_size
        self._eos_ids = eos_ids
        self._numbers = itertools.count()
        self._sessions: dict[str, Session] = {}

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._sessions

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def get(self, session_id: str) -> Session | None:
        return self._sessions.get(session_id)

    def use(self, session_id: str) -> Session:
        """A session that is asked for, its lease renewed. Raises NotFound."""
        session = self._sessions.get(session_id)
        if session is None:
            raise NotFound("session_id", f"no session {session_id!r} here")
        session.renew(self._clock())
        return session

    def admit(self, checked: Checked, *, queue_us: float = 0.0) -> None:
        """Reserves the session's KV. Repeating it is harmless.

        Raises AlreadyExists if the id is taken by another request, ResourceExhausted (`kv_tokens`) with a hint when the KV
        budget is spent for now.
        """
        request = checked.request
        known = self._sessions.get(request.session_id)
        if known is not None:
            if not same_opening(known.request, request):
                raise AlreadyExists("session_id", f"{request.session_id!r} was opened by another request")
            known.renew(self._clock())
            return
        try:
            session = self._admit(checked)
        except Exception as error:
            raise typed(error) from error
        session.queue_us = queue_us
        session.renew(self._clock())
        self._sessions[request.session_id] = session
        self._store.hold(session)

    def drop(self, session: Session) -> None:
        """Frees the session's KV."""
        del self._sessions[session.request.session_id]
        self._store.give_back(session)
        self.room += 1

    def expire(self, now_ns: int | None = None, *, waiting: Collection[str] = ()) -> tuple[str, ...]:
        """Drops the sessions whose lease lapsed before `now_ns` (the engine clock's), and names them.

        waiting: sessions with a call that has not been served yet; they stay.
        """
        now = self._clock() if now_ns is None else now_ns
        lapsed = [
            session
            for session_id, session in self._sessions.items()
            if session.lease_until_ns < now and session_id not in waiting
        ]
        for session in lapsed:
            self.drop(session)
        return tuple(session.request.session_id for session in lapsed)

    def _admit(self, checked: Checked) -> Session:
        request, verifier, taps = checked.request, checked.verifier, checked.taps
        policy, ours = request.policy, len(request.prompt) - request.published
        try:
            placed = self._store.place(request.prompt[:-1], request.cache_scope, taps, kv_capacity(request))
        except ResourceExhausted as error:
            if not self._sessions and self._store.tokens_free == self._store.tokens_total:
                # Nobody's end would make more room than there is.
                raise InvalidArgument("prompt", f"the session needs more KV than there is: {error.message}") from error
            raise ResourceExhausted("kv_tokens", error.message, retry_after_ms=self._soonest_end_ms()) from error
        return Session(
            request=request,
            verifier=verifier,
            laws=LawProcessor(policy, vocab_size=self._vocab_size, prompt_len=ours, eos_ids=self._eos_ids),
            limit=ours + policy.max_tokens,
            stop=frozenset(policy.stop_ids if policy.ignore_eos else (*policy.stop_ids, *self._eos_ids)),
            slot=placed.slot,
            hidden=placed.hidden,
            cached=placed.cached,
            number=next(self._numbers),
            alone=request.manifest.strict and request.manifest.target.strict_rows is not None,
        )

    def _soonest_end_ms(self) -> int:
        """When the session nearest to its limit would end at one token a step; a hint, not a promise."""
        left = min((session.limit - session.prefix_len for session in self._sessions.values()), default=0)
        return max(10, round(left * self._steps.plain_step_us / 1e3))
