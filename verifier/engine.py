"""The engine: sessions over one target. Synchronous, single-threaded, and the only owner of its backend.

Prompts are prefilled in chunks and rounds run many at a time, so a caller (verifier/worker.py) can take turns between
them. Nothing here reads the clock for a decision except leases; every coin comes from contracts/randomness.py.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from contracts.errors import AlreadyExists, DraftproofError, FailedPrecondition, NotFound, ResourceExhausted
from contracts.hidden import HiddenRows
from contracts.manifest import TargetIdentity
from contracts.ports import OpenSession, SessionOpened, VerifierDescription, VerifyRequest
from contracts.receipt import Receipt
from models.backend import Backend, RowBlock
from models.laws import LawProcessor
from verifier.admission import check_opening, check_taps, kv_capacity, same_opening
from verifier.faults import typed
from verifier.kv_store import KVStore
from verifier.round import Round, check_round, pack, replay
from verifier.selection import VERIFIERS
from verifier.selection.base import Verifier
from verifier.session import Session
from verifier.step_clock import StepClock, warm_up
from verifier.stopping import within_reach
from verifier.verify_pass import Clock, run_pass


class Engine:
    """max_rows: candidates a round may have, the anchor not counted. kv_tokens: the backend's whole KV budget in rows.
    hardware: the profile that manifests seal. prefill_chunk: prompt rows a single pass may take. max_pass_rows: rows of
    a pass over several sessions, as its worker makes them, for the manifest. share_prefixes: sessions
    take over the KV of prompt starts that others hold. cache_tokens: KV rows of closed sessions kept for that at most.
    clock: nanoseconds.
    """

    def __init__(
        self,
        backend: Backend,
        tokenizer_digest: str,
        model_name: str,
        eos_ids: Iterable[int],
        *,
        max_rows: int,
        kv_tokens: int,
        hardware: str = "",
        prefill_chunk: int = 256,
        max_pass_rows: int = 512,
        share_prefixes: bool = True,
        cache_tokens: int = 8192,
        clock: Clock = time.perf_counter_ns,
        verifiers: Mapping[str, Verifier] = VERIFIERS,
    ) -> None:
        self._backend = backend
        info = backend.info
        self._target = TargetIdentity(
            model=model_name,
            checkpoint_digest=info.checkpoint_digest,
            tokenizer_digest=tokenizer_digest,
            vocab_size=info.vocab_size,
            context_length=info.context_length,
            dtype=info.dtype,
            backend=info.backend,
            hardware=hardware,
            row_invariant_up_to=info.row_invariant_up_to,
            batching=f"pass_rows={max_pass_rows},prefill_chunk={prefill_chunk}",
        )
        self._eos_ids = tuple(eos_ids)
        self._max_rows = max_rows
        self._prefill_chunk = prefill_chunk
        self._store = KVStore(
            backend, kv_tokens, prefill_chunk=prefill_chunk, cache_tokens=cache_tokens, sharing=share_prefixes
        )
        self._numbers = itertools.count()
        self._clock = clock
        self._verifiers = verifiers
        self._steps = StepClock()
        self._sessions: dict[str, Session] = {}

    def warm_up(self, passes: int = 5) -> None:
        """Measures the one-row step before the first session; it needs a few dozen rows of the KV budget."""
        warm_up(self._backend, self._steps, self._clock, passes=passes)

    @property
    def kv_tokens_free(self) -> int:
        return self._store.tokens_free

    def describe(self) -> VerifierDescription:
        return VerifierDescription(
            target=self._target,
            capabilities=tuple(verifier.capability for verifier in self._verifiers.values()),
            eos_ids=self._eos_ids,
            max_rows=self._max_rows,
            kv_tokens_total=self._store.tokens_total,
            kv_tokens_free=self._store.tokens_free,
            plain_step_us=self._steps.plain_step_us,
            kv_tokens_cached=self._store.tokens_cached,
            kv_token_bytes=self._store.token_bytes,
        )

    def open_session(self, request: OpenSession) -> SessionOpened:
        """Admits a session and prefills its whole prompt; see `begin_session` for what is raised."""
        self.begin_session(request)
        while (opened := self.prefill(request.session_id)) is None:
            pass
        return opened

    def begin_session(self, request: OpenSession, *, queue_us: float = 0.0) -> None:
        """Checks the request and reserves its KV. Repeating it is harmless.

        Raises AlreadyExists if the id is taken by another request, ResourceExhausted with a hint when the KV budget is
        spent for now, and what `check_opening` raises.
        """
        known = self._sessions.get(request.session_id)
        if known is not None:
            if not same_opening(known.request, request):
                raise AlreadyExists("session_id", f"{request.session_id!r} was opened by another request")
            known.renew(self._clock())
            return
        try:
            verifier = check_opening(
                request, self._target, self._verifiers, max_rows=self._max_rows, kv_tokens=self._store.tokens_total
            )
            taps = check_taps(request.manifest, self._backend.info.num_layers)
            session = self._admit(request, verifier, taps)
        except DraftproofError:
            raise
        except Exception as error:
            raise typed(error) from error
        session.queue_us = queue_us
        session.renew(self._clock())
        self._sessions[request.session_id] = session
        self._store.hold(session)

    def awaits(self, session_id: str) -> bool:
        """Whether a session in prefill had better wait for another, whose longer start of its prompt it will take over."""
        session = self._sessions.get(session_id)
        return session is not None and session.opened is None and self._store.awaits(session)

    def prefill(self, session_id: str) -> SessionOpened | None:
        """Runs the next chunk of the prompt; the answer to the open call once the prompt is done.

        A fault drops the session: it has published nothing yet.
        """
        session = self._session(session_id)
        if session.opened is not None:
            return session.opened
        started = self._clock()
        try:
            session.cached += self._store.take_over(session)
            self._run_chunk(session)
        except Exception as error:
            # Its KV is as the fault left it: nothing that others may take over.
            session.lost = True
            self._drop(session)
            raise typed(error) from error
        session.prefill_us += (self._clock() - started) / 1e3
        if session.slot.length == session.prefix_len - 1:
            session.opened = SessionOpened(
                session_id, session.generation, session.prefix_len, session.prefill_us, session.queue_us, session.cached
            )
        return session.opened

    def _run_chunk(self, session: Session) -> None:
        prompt, slot = session.prefix[:-1], session.slot
        start, stop = slot.length, min(slot.length + self._prefill_chunk, len(prompt))
        if start == stop:
            return
        order = np.arange(stop - start, dtype=np.int64)
        rows = RowBlock(slot, prompt[start:stop], start + order, order - 1, np.zeros(0, dtype=np.int64))
        hidden = self._backend.forward([rows], taps=session.taps).hidden
        fresh = None
        if session.hidden is not None:
            fresh = session.hidden.pick({tap: blocks[0] for tap, blocks in hidden.items()}, range(stop - start))
        self._backend.commit(slot, range(stop - start))
        if session.hidden is not None and fresh is not None:
            session.hidden.append(fresh)

    def verify_many(
        self, requests: Sequence[VerifyRequest], *, queued_us: Sequence[float] | None = None
    ) -> list[Receipt | DraftproofError]:
        """Runs one round for each request, all sessions in one pass; the outcomes are in the requests' order.

        A session's second request in the list waits for its first. queued_us: how long each has waited so far.
        """
        waits = queued_us if queued_us is not None else [0.0] * len(requests)
        outcomes: dict[int, Receipt | DraftproofError] = {}
        waiting = list(range(len(requests)))
        while waiting:
            wave: dict[str, int] = {}
            for index in waiting:
                wave.setdefault(requests[index].manifest.session_id, index)
            rounds: dict[int, Round] = {}
            for index in wave.values():
                try:
                    ready = self._prepare(requests[index], waits[index])
                except Exception as error:
                    outcomes[index] = typed(error)
                else:
                    if isinstance(ready, Round):
                        rounds[index] = ready
                    else:
                        outcomes[index] = ready
            if rounds:
                settled = run_pass(self._backend, list(rounds.values()), self._steps, self._clock)
                outcomes.update(zip(rounds, settled, strict=True))
                for round in rounds.values():
                    if round.session.lost:
                        self._drop(round.session)
            waiting = [index for index in waiting if index not in outcomes]
        return [outcomes[index] for index in range(len(requests))]

    def get_receipt(self, session_id: str, round_id: int) -> Receipt:
        """Raises NotFound if the round was not verified here, or its receipt was acknowledged."""
        receipt = self._session(session_id).receipts.get(round_id)
        if receipt is None:
            raise NotFound("round_id", f"session {session_id!r} keeps no receipt of round {round_id}")
        return receipt

    def export_hidden(self, session_id: str, start: int, stop: int) -> HiddenRows:
        """See VerifierPort.export_hidden."""
        session = self._session(session_id)
        if session.hidden is None:
            raise FailedPrecondition("taps", f"session {session_id!r} binds no source that reads hidden rows")
        return session.hidden.export(start, stop)

    def close_session(self, session_id: str, *, unless_open: bool = False) -> None:
        """Frees the session's KV, with `unless_open` only if it is still in prefill. Unknown sessions are no error, so
        that a repeat is harmless.
        """
        session = self._sessions.get(session_id)
        if session is not None and not (unless_open and session.opened is not None):
            self._drop(session)

    def expire_leases(self, now_ns: int | None = None, *, waiting: Collection[str] = ()) -> tuple[str, ...]:
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
            self._drop(session)
        return tuple(session.request.session_id for session in lapsed)

    def _session(self, session_id: str) -> Session:
        session = self._sessions.get(session_id)
        if session is None:
            raise NotFound("session_id", f"no session {session_id!r} here")
        session.renew(self._clock())
        return session

    def _admit(self, request: OpenSession, verifier: Verifier, taps: tuple[str, ...]) -> Session:
        policy, ours = request.policy, len(request.prompt) - request.published
        try:
            placed = self._store.place(request.prompt[:-1], request.cache_scope, taps, kv_capacity(request))
        except ResourceExhausted as error:
            raise ResourceExhausted("kv_tokens", error.message, retry_after_ms=self._soonest_end_ms()) from error
        return Session(
            request=request,
            verifier=verifier,
            laws=LawProcessor(policy, vocab_size=self._target.vocab_size, prompt_len=ours, eos_ids=self._eos_ids),
            limit=ours + policy.max_tokens,
            stop=frozenset(policy.stop_ids if policy.ignore_eos else (*policy.stop_ids, *self._eos_ids)),
            slot=placed.slot,
            hidden=placed.hidden,
            cached=placed.cached,
            number=next(self._numbers),
        )

    def _soonest_end_ms(self) -> int:
        """When the session nearest to its limit would end at one token a step; a hint, not a promise."""
        left = min((session.limit - session.prefix_len for session in self._sessions.values()), default=0)
        return max(10, round(left * self._steps.plain_step_us / 1e3))

    def _prepare(self, request: VerifyRequest, queued_us: float) -> Round | Receipt:
        started = self._clock()
        session = self._session(request.manifest.session_id)
        kept = replay(session, request)
        if kept is not None:
            return kept
        check_round(session, request, vocab_size=self._target.vocab_size)
        graph, originals = within_reach(request.graph, session.limit - session.prefix_len)
        block = pack(session, graph)
        pack_us = (self._clock() - started) / 1e3
        return Round(session, request, graph, originals, block, queued_us, pack_us)

    def _drop(self, session: Session) -> None:
        del self._sessions[session.request.session_id]
        self._store.give_back(session)
