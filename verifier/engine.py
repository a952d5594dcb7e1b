"""The engine: sessions over one target. Synchronous, single-threaded, and the only owner of its backend.

Prompts are prefilled in chunks and rounds run many at a time, so a caller (verifier/worker.py) can take turns between
them. Nothing here reads the clock for a decision except leases; every coin comes from contracts/randomness.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from contracts.errors import (
    DraftproofError,
    FailedPrecondition,
    NotFound,
)
from contracts.hidden import HiddenRows
from contracts.manifest import TargetIdentity
from contracts.ports import OpenSession, SessionOpened, VerifierDescription, VerifyRequest
from contracts.receipt import Receipt
from models.backend import Backend
from verifier.admission import Checked, check_opening, check_taps
from verifier.faults import typed
from verifier.kv_store import KVStore
from verifier.prefill import Chunk, Prefill, opened
from verifier.round import Round, check_round, pack, replay
from verifier.selection import VERIFIERS
from verifier.selection.base import Verifier
from verifier.session import Session
from verifier.sessions import Sessions
from verifier.step_clock import StepClock, warm_up
from verifier.stopping import within_reach
from verifier.verify_pass import Clock, run_pass


class Engine:
    """max_rows: candidates a round may have, the anchor not counted. kv_tokens: the backend's whole KV budget in rows.
    hardware: the profile that manifests seal. prefill_chunk: prompt rows a single pass may take. prefill_slowdown: how many
    times as long as without them a pass of rounds may take for prompt rows (verifier/prefill.py). max_pass_rows: rows of a
    pass over several sessions, as its worker makes them, for the manifest. share_prefixes: sessions
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
        prefill_slowdown: float = 2.0,
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
            build=info.build,
        )
        self._eos_ids = tuple(eos_ids)
        self._max_rows = max_rows
        self._store = KVStore(
            backend, kv_tokens, prefill_chunk=prefill_chunk, cache_tokens=cache_tokens, sharing=share_prefixes
        )
        self._clock = clock
        self._verifiers = verifiers
        self._steps = StepClock()
        self.sessions = Sessions(self._store, self._steps, clock, vocab_size=info.vocab_size, eos_ids=self._eos_ids)
        self._prefill = Prefill(backend, self._steps, clock, chunk_rows=prefill_chunk, slowdown=prefill_slowdown)

    def warm_up(self, passes: int = 5) -> None:
        """Measures the one-row step before the first session; it needs a few dozen rows of the KV budget."""
        warm_up(self._backend, self._steps, self._clock, passes=passes)

    @property
    def joins_prompts(self) -> bool:
        """Whether `turn` may run prompt rows in the rounds' pass: where no row's results depend on the others."""
        return self._prefill.joins

    @property
    def owes_rounds(self) -> bool:
        """Whether rounds that wait go before the next chunk of a prompt."""
        return self._prefill.owes

    @property
    def plain_step_us(self) -> float:
        """Median of the one-row passes, microseconds; 0 before the first."""
        return self._steps.plain_step_us

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
            plain_step_us=self.plain_step_us,
            kv_tokens_cached=self._store.tokens_cached,
            kv_token_bytes=self._store.token_bytes,
        )

    def open_session(self, request: OpenSession) -> SessionOpened:
        """Admits a session and prefills its whole prompt; see `check` and `admit` for what is raised."""
        self.begin_session(request)
        while (answer := self.prefill(request.session_id)) is None:
            pass
        return answer

    def begin_session(self, request: OpenSession) -> None:
        """`check` and `admit` in one."""
        self.sessions.admit(self.check(request))

    def check(self, request: OpenSession) -> Checked:
        """All that does not hang on other sessions. Raises what `check_opening` raises: no waiting will help."""
        try:
            verifier = check_opening(
                request, self._target, self._verifiers, max_rows=self._max_rows, kv_tokens=self._store.tokens_total
            )
            return Checked(request, verifier, check_taps(request.manifest, self._backend.info.num_layers))
        except Exception as error:
            raise typed(error) from error

    def awaits(self, session_id: str) -> bool:
        """Whether a session in prefill had better wait for another, whose longer start of its prompt it will take over."""
        session = self.sessions.get(session_id)
        return session is not None and session.opened is None and self._store.awaits(session)

    def prefill(self, session_id: str) -> SessionOpened | None:
        """Runs the next chunk of the prompt; the answer to the open call once the prompt is done.

        A fault drops the session: it has published nothing yet.
        """
        session = self.sessions.use(session_id)
        if session.opened is not None:
            return session.opened
        try:
            self._take_over(session)
            self._prefill.run(session)
        except Exception as error:
            raise self._failed(session, error) from error
        return self._opened(session)

    def turn(
        self, requests: Sequence[VerifyRequest], *, queued_us: Sequence[float], prompt: str
    ) -> tuple[list[Receipt | DraftproofError], SessionOpened | DraftproofError | None]:
        """`verify_many`, and in its pass the next rows of the prompt of session `prompt`: beside the rounds' outcomes what
        `prefill` answers or raises.
        """
        session, chunk = self.sessions.get(prompt), None
        if session is not None and session.opened is None:
            try:
                self._take_over(session)
                chunk = self._prefill.beside(session, sum(len(request.graph) + 1 for request in requests))
            except Exception as error:
                return self.verify_many(requests, queued_us=queued_us), self._failed(session, error)
        outcomes = self.verify_many(requests, queued_us=queued_us, chunk=chunk)
        if session is not None and chunk is not None and chunk.error is not None:
            return outcomes, self._failed(session, chunk.error)
        if session is not None and chunk is not None and chunk.committed:
            return outcomes, self._opened(session)
        # Alone, where there was no pass to join or it failed.
        try:
            return outcomes, self.prefill(prompt)
        except DraftproofError as error:
            return outcomes, error

    def verify_many(
        self,
        requests: Sequence[VerifyRequest],
        *,
        queued_us: Sequence[float] | None = None,
        chunk: Chunk | None = None,
    ) -> list[Receipt | DraftproofError]:
        """Runs one round for each request, all sessions in one pass; the outcomes are in the requests' order.

        A session's second request in the list waits for its first. queued_us: how long each has waited so far. chunk: of a
        prompt, joins the first pass.
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
            for group in _passes(rounds):
                started = self._clock()
                joined = None if group[0][1].session.alone else chunk
                settled = run_pass(self._backend, [round for _, round in group], self._steps, self._clock, joined)
                chunk = None if joined is not None else chunk
                self._prefill.rounds_ran((self._clock() - started) / 1e3)
                for (index, round), outcome in zip(group, settled, strict=True):
                    outcomes[index] = outcome
                    if round.session.lost:
                        self.sessions.drop(round.session)
            waiting = [index for index in waiting if index not in outcomes]
        return [outcomes[index] for index in range(len(requests))]

    def get_receipt(self, session_id: str, round_id: int) -> Receipt:
        """Raises NotFound if the round was not verified here, or its receipt was acknowledged."""
        receipt = self.sessions.use(session_id).receipts.get(round_id)
        if receipt is None:
            raise NotFound("round_id", f"session {session_id!r} keeps no receipt of round {round_id}")
        return receipt

    def export_hidden(self, session_id: str, start: int, stop: int) -> HiddenRows:
        """See VerifierPort.export_hidden."""
        session = self.sessions.use(session_id)
        if session.hidden is None:
            raise FailedPrecondition("taps", f"session {session_id!r} binds no source that reads hidden rows")
        return session.hidden.export(start, stop)

    def close_session(self, session_id: str, *, unless_open: bool = False) -> None:
        """Frees the session's KV, with `unless_open` only if it is still in prefill. Unknown sessions are no error, so
        that a repeat is harmless.
        """
        session = self.sessions.get(session_id)
        if session is not None and not (unless_open and session.opened is not None):
            self.sessions.drop(session)

    def _take_over(self, session: Session) -> None:
        started = self._clock()
        session.cached += self._store.take_over(session)
        session.prefill_us += (self._clock() - started) / 1e3

    def _opened(self, session: Session) -> SessionOpened | None:
        answer = opened(session)
        if answer is not None:
            self.sessions.room += 1
        return answer

    def _failed(self, session: Session, error: Exception) -> DraftproofError:
        # Its KV is as the fault left it: nothing that others may take over.
        session.lost = True
        self.sessions.drop(session)
        return typed(error)

    def _prepare(self, request: VerifyRequest, queued_us: float) -> Round | Receipt:
        started = self._clock()
        session = self.sessions.use(request.manifest.session_id)
        kept = replay(session, request)
        if kept is not None:
            return kept
        check_round(session, request, vocab_size=self._target.vocab_size)
        graph, originals = within_reach(request.graph, session.limit - session.prefix_len)
        block = pack(session, graph)
        pack_us = (self._clock() - started) / 1e3
        return Round(session, request, graph, originals, block, queued_us, pack_us)


def _passes(rounds: Mapping[int, Round]) -> list[list[tuple[int, Round]]]:
    """Which rounds share a pass: all, but for those of sessions that share none."""
    shared = [item for item in rounds.items() if not item[1].session.alone]
    if len(shared) == len(rounds):
        return [shared] if shared else []
    alone = [[item] for item in rounds.items() if item[1].session.alone]
    return [shared, *alone] if shared else alone
