"""One ragged target pass over the rounds of several sessions, and each round's settlement after it.

Settlement is a transaction: laws, selection, truncation and logprobs first, then the KV commit, and only then, by steps
that cannot fail, the publication. Whatever raises on the way leaves the session as it was (M7.7 section 0x07F).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from torch import Tensor

from contracts.errors import DraftproofError, Internal, InvalidArgument
from contracts.graph import check_commit
from contracts.randomness import CoinChooser
from contracts.receipt import Receipt, TokenLogprob, VerifyTimings
from models.backend import Backend, PassResult
from models.host_rows import Floats, HostRows, rows_at
from verifier.faults import restore, typed
from verifier.prefill import Chunk, commit_chunk
from verifier.round import Round
from verifier.session import Session
from verifier.step_clock import StepClock
from verifier.stopping import Publication, cut

Clock = Callable[[], int]


class _Load(msgspec.Struct, frozen=True):
    """The pass a round rode in: when its batch was begun (ns), its target time (us), its rows, those of a prompt included,
    and the sessions with rounds in it."""

    begun_ns: int
    target_us: float
    rows: int
    sessions: int


def run_pass(
    backend: Backend, rounds: Sequence[Round], steps: StepClock, clock: Clock, chunk: Chunk | None = None
) -> list[Receipt | DraftproofError]:
    """Runs the target once over all rounds, of different sessions, and settles each; a fault stays with its round.

    chunk: of another session's prompt, committed once the rounds are settled; a fault of that is noted in it. If the pass
    itself fails, every round is tried alone, so that one round's fault does not fail its neighbours, and the chunk is not
    run.
    """
    begun = clock()
    blocks = [round.block for round in rounds]
    sessions = [round.session for round in rounds]
    if chunk is not None:
        blocks.append(chunk.block)
        sessions.append(chunk.session)
    taps = sessions[0].taps if len(sessions) == 1 else _all_taps(sessions)
    try:
        result = backend.forward(blocks, taps=taps)
        logits = result.logits
        if not isinstance(logits, HostRows) and logits[0].is_cuda:
            # The device may still be computing: reading a number waits for it, so that the time is the target's.
            float(logits[0][-1, -1])
    except Exception as error:
        for round in rounds:
            restore(backend, round.session)
        if chunk is not None:
            _roll_back(backend, chunk)
        elif len(rounds) == 1:
            return [typed(error)]
        return [outcome for round in rounds for outcome in run_pass(backend, [round], steps, clock)]
    target_us = (clock() - begun) / 1e3
    rows = sum(len(block.token_ids) for block in blocks)
    load = _Load(begun, target_us, rows, len(rounds))
    steps.record(rows, target_us)
    outcomes = [
        _settle(backend, round, rows_at(logits, index), _hidden(result, index), load, clock)
        for index, round in enumerate(rounds)
    ]
    if chunk is not None:
        chunk.session.prefill_us += target_us * len(chunk) / rows
        try:
            commit_chunk(backend, chunk, _hidden(result, len(rounds)))
        except Exception as error:
            chunk.error = error
    return outcomes


def _all_taps(sessions: Sequence[Session]) -> tuple[str, ...]:
    return tuple(sorted({tap for session in sessions for tap in session.taps}))


def _hidden(result: PassResult, index: int) -> dict[str, Tensor | Floats]:
    return {tap: rows_at(blocks, index) for tap, blocks in result.hidden.items()}


def _roll_back(backend: Backend, chunk: Chunk) -> None:
    try:
        backend.rollback(chunk.session.slot)
    except Exception as error:
        chunk.error = error


def _settle(
    backend: Backend,
    round: Round,
    logits: Tensor | Floats,
    hidden: Mapping[str, Tensor | Floats],
    load: _Load,
    clock: Clock,
) -> Receipt | DraftproofError:
    session, request = round.session, round.request
    started = clock()
    try:
        publication, logprobs = _choose(round, logits)
        accepted = tuple([round.originals[row] for row in publication.rows])
        chosen = clock()
        kept = publication.kv_rows
        fresh = None if session.hidden is None else session.hidden.pick(hidden, kept)
        backend.commit(session.slot, kept)
    except Exception as error:
        restore(backend, session)
        return typed(error)
    session.publish(publication, fresh)
    committed = clock()
    share = load.target_us * len(round.block.token_ids) / load.rows
    receipt = Receipt(
        session_id=request.manifest.session_id,
        round_id=request.manifest.round_id,
        payload_digest=request.payload_digest,
        round_hash=request.manifest.hash,
        generation=session.generation,
        prefix_len=session.prefix_len,
        tokens=publication.tokens,
        accepted_rows=accepted,
        closing=publication.closing,
        finish=publication.finish,
        logprobs=logprobs,
        timings=VerifyTimings(
            # What others took of the pass, and of the settlement before ours, is waiting to this round.
            queue_us=round.queued_us + (started - load.begun_ns) / 1e3 - share,
            pack_us=round.pack_us,
            target_us=share,
            select_us=(chosen - started) / 1e3,
            commit_us=(committed - chosen) / 1e3,
        ),
        pass_rows=load.rows,
        pass_sessions=load.sessions,
        hidden_handle="" if fresh is None else f"{request.manifest.session_id}@{session.generation}",
        hidden=fresh,
    )
    session.file(receipt, acknowledged=request.acknowledge)
    return receipt


def _choose(round: Round, logits: Tensor | Floats) -> tuple[Publication, tuple[TokenLogprob, ...]]:
    session, graph = round.session, round.graph
    policy, prefix_len = session.request.policy, session.prefix_len
    laws = session.laws.laws(logits, prefix=session.prefix, token_ids=graph.token_ids, parents=graph.parents)
    chooser = CoinChooser(policy.seed, prefix_len)
    selection = session.verifier.select(graph, laws, chooser, prefix_len=prefix_len)
    try:
        check_commit(graph, selection.rows)
    except InvalidArgument as error:
        raise Internal("selection", f"verifier {session.request.manifest.verifier!r} chose no path: {error}") from error
    publication = cut(
        tuple([graph.token_list[row] for row in selection.rows]),
        selection.rows,
        selection.token,
        selection.closing,
        stop=session.stop,
        room=session.limit - prefix_len,
    )
    if policy.logprobs is None:
        return publication, ()
    # A published token's predictor is the row committed before it; laws count the anchor as -1.
    return publication, tuple(
        session.laws.logprob(laws, row - 1, token)
        for row, token in zip(publication.kv_rows, publication.tokens, strict=True)
    )
