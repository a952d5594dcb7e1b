"""After any sequence of openings, rounds, replays, refusals and faults, every session says what plain decoding says."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from contracts.errors import AlreadyExists, DraftproofError, FailedPrecondition, Internal, InvalidArgument
from contracts.graph import EMPTY_GRAPH, CandidateGraph
from contracts.ports import VerifyRequest
from contracts.randomness import CoinChooser
from contracts.receipt import FinishReason
from contracts.sampling import SamplingPolicy
from models.backend import Backend, RowBlock
from models.kv import Slot
from models.load import load_backend
from tests.helpers.tiny_models import tiny_checkpoint
from tests.unit.verifier.rig import Client, Rig, chain, tree, verify_one
from tests.unit.verifier.scripted_backend import ForkingBackend, ScriptedBackend, hashing

VOCAB = 23
# Four sessions' worth in pages of 16: what ended sessions leave behind has to give way again and again.
KV_TOKENS = 192
NODE_BUDGET = 12
COMMON = (7, 3, 9, 1, 1, 4, 8, 2, 6, 5, 0, 10)


@cache
def checkpoint(family: str) -> Path:
    return tiny_checkpoint(Path(tempfile.mkdtemp()), family, vocab_size=VOCAB, logit_scale=2.0)


def scripted() -> Backend:
    return ScriptedBackend(hashing(VOCAB), vocab_size=VOCAB, kv_tokens=KV_TOKENS)


def forking() -> Backend:
    return ForkingBackend(hashing(VOCAB), vocab_size=VOCAB, kv_tokens=KV_TOKENS)


def llama() -> Backend:
    return load_backend(checkpoint("llama"), kv_budget_tokens=KV_TOKENS, implementation="cpu-torch", poison=True)


def qwen() -> Backend:
    return load_backend(checkpoint("qwen3"), kv_budget_tokens=KV_TOKENS, implementation="cpu-torch", poison=True)


@cache
def oracle(make: object) -> Backend:
    assert callable(make)
    return make()  # type: ignore[no-any-return]


def row_logits(backend: Backend, tokens: list[int]) -> np.ndarray:
    """float32 [V] after `tokens`, computed from nothing."""
    slot = backend.allocate(len(tokens))
    order = np.arange(len(tokens))
    result = backend.forward([RowBlock(slot, np.array(tokens), order, order - 1, order[-1:])])
    backend.release(slot)
    return np.asarray(result.logits[0][0])


def plain(backend: Backend, prompt: list[int], policy: SamplingPolicy, eos: int) -> list[int]:
    """One token at a time, each from a pass over the whole prefix."""
    out: list[int] = []
    while len(out) < policy.max_tokens and (not out or out[-1] not in (eos, *policy.stop_ids)):
        logits = row_logits(backend, prompt + out).astype(np.float64)
        if policy.greedy:
            out.append(int(np.argmax(logits)))
            continue
        scaled = logits / policy.temperature
        log_probs = scaled - np.logaddexp.reduce(scaled)
        out.append(CoinChooser(policy.seed, 0).gumbel_argmax(log_probs, len(prompt) + len(out)))
    return out


@dataclass
class Speaker:
    """A session, what it must say, and its latest call."""

    client: Client
    expected: list[int]
    last: VerifyRequest | None = None

    @property
    def left(self) -> list[int]:
        return self.expected[len(self.client.published) :]


@st.composite
def guesses(draw: st.DrawFn, right: list[int]) -> CandidateGraph:
    """A random tree, some of whose paths follow `right`."""
    rows: list[tuple[int, int]] = []
    good_depth = {-1: 0}
    for row in range(draw(st.integers(0, NODE_BUDGET))):
        parent = draw(st.integers(-1, row - 1))
        if parent >= len(rows):
            continue
        depth = good_depth.get(parent)
        wanted = right[depth] if depth is not None and depth < len(right) and draw(st.integers(0, 3)) else None
        token = wanted if wanted is not None else draw(st.integers(0, VOCAB - 1))
        if (token, parent) in rows:
            continue
        if depth is not None and depth < len(right) and token == right[depth]:
            good_depth[len(rows)] = depth + 1
        rows.append((token, parent))
    return tree(rows)


class RandomRounds(RuleBasedStateMachine):
    make = staticmethod(scripted)

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(type(self).make(), kv_tokens=KV_TOKENS, prefill_chunk=3)
        self.oracle = oracle(type(self).make)
        self.speakers: dict[str, Speaker] = {}
        self.opened = 0

    @property
    def going(self) -> list[Speaker]:
        return [speaker for speaker in self.speakers.values() if speaker.client.finish is FinishReason.NONE]

    @precondition(lambda self: len(self.speakers) < 4)
    @rule(
        prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9)
        | st.builds(lambda n, own: [*COMMON[:n], *own], st.integers(1, 12), st.lists(st.integers(0, 2), max_size=3)),
        temperature=st.sampled_from([0.0, 0.0, 1.0]),
        seed=st.integers(0, 3),
        max_tokens=st.integers(1, 12),
        stop_ids=st.sampled_from([(), (3, 5)]),
    )
    def open(
        self, prompt: list[int], temperature: float, seed: int, max_tokens: int, stop_ids: tuple[int, ...]
    ) -> None:
        policy = SamplingPolicy(temperature=temperature, seed=seed, max_tokens=max_tokens, stop_ids=stop_ids)
        name = f"s{self.opened}"
        self.opened += 1
        client = self.rig.open(prompt, policy, session_id=name, node_budget=NODE_BUDGET)
        self.speakers[name] = Speaker(client, plain(self.oracle, prompt, policy, self.rig.engine.describe().eos_ids[0]))

    @precondition(lambda self: self.going)
    @rule(data=st.data())
    def rounds(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.going), min_size=1, max_size=3, unique_by=id))
        for speaker in chosen:
            acknowledge = data.draw(st.sampled_from([-1, speaker.client.next_round - 1]))
            speaker.last = speaker.client.request(data.draw(guesses(speaker.left)), acknowledge=acknowledge)
        outcomes = self.rig.engine.verify_many([speaker.last for speaker in chosen if speaker.last])
        for speaker, outcome in zip(chosen, outcomes, strict=True):
            assert not isinstance(outcome, DraftproofError), outcome
            assert list(outcome.tokens) == speaker.left[: len(outcome.tokens)]
            assert speaker.last is not None
            path = speaker.last.graph.token_ids[list(outcome.accepted_rows)].tolist()
            assert path == list(outcome.tokens[: len(path)])
            assert len(outcome.tokens) - len(path) in (0, 1)
            speaker.client.absorb(outcome)
            assert (speaker.client.finish is FinishReason.NONE) == bool(speaker.left)

    @precondition(lambda self: any(speaker.last for speaker in self.speakers.values()))
    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        speaker = data.draw(st.sampled_from([s for s in self.speakers.values() if s.last]))
        assert speaker.last is not None
        assert verify_one(self.rig.engine, speaker.last) is speaker.client.receipts[-1]
        other = speaker.client.request(chain(1, 2, 3, 4, 5, 6, 7), round_id=speaker.last.manifest.round_id)
        with pytest.raises(AlreadyExists):
            verify_one(self.rig.engine, other)

    @precondition(lambda self: self.going)
    @rule(data=st.data(), shift=st.sampled_from([-1, 1]))
    def refused_coordinates(self, data: st.DataObject, shift: int) -> None:
        client = data.draw(st.sampled_from(self.going)).client
        for change in ({"target_generation": client.generation + shift}, {"prefix_len": len(client.tokens) + shift}):
            with pytest.raises(FailedPrecondition):
                verify_one(self.rig.engine, client.request(**change))

    @precondition(lambda self: self.going)
    @rule(data=st.data(), graph=st.sampled_from([tree([(1, 0)]), tree([(VOCAB, -1)]), chain(*range(NODE_BUDGET + 1))]))
    def refused_graph(self, data: st.DataObject, graph: CandidateGraph) -> None:
        client = data.draw(st.sampled_from(self.going)).client
        with pytest.raises(InvalidArgument):
            verify_one(self.rig.engine, client.request(graph))

    @precondition(lambda self: self.going and isinstance(self.rig.backend, ScriptedBackend))
    @rule(data=st.data(), call=st.sampled_from(["forward", "commit"]), late=st.booleans())
    def fault(self, data: st.DataObject, call: str, late: bool) -> None:
        speaker = data.draw(st.sampled_from(self.going))
        assert isinstance(self.rig.backend, ScriptedBackend)
        self.rig.backend.faults[call] = RuntimeError("fault")
        self.rig.backend.late = {call} if late else set()
        with pytest.raises(Internal):
            verify_one(self.rig.engine, speaker.client.request(data.draw(guesses(speaker.left))))

    @precondition(lambda self: self.speakers)
    @rule(data=st.data())
    def kv_is_that_of_a_fresh_prefill(self, data: st.DataObject) -> None:
        speaker = data.draw(st.sampled_from(list(self.speakers.values())))
        session = self.rig.engine.sessions.use(speaker.client.session_id)
        tokens = speaker.client.tokens
        last = len(tokens) - 1
        anchor = RowBlock(session.slot, np.array(tokens[-1:]), np.array([last]), np.array([-1]))
        logits = self.rig.backend.forward([anchor]).logits[0][0]
        self.rig.backend.rollback(session.slot)
        np.testing.assert_allclose(np.asarray(logits), row_logits(self.oracle, tokens), atol=1e-4)

    @precondition(lambda self: self.speakers)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.speakers)))
        self.rig.engine.close_session(name)
        del self.speakers[name]

    @invariant()
    def committed_rows_are_one_less_than_the_prefix_and_nothing_is_staged(self) -> None:
        sessions = {session.request.session_id: session for session in self.rig.engine.sessions}
        assert set(sessions) == set(self.speakers)
        for name, speaker in self.speakers.items():
            slot = sessions[name].slot
            assert (slot.length, slot.staged) == (len(speaker.client.tokens) - 1, 0)
            assert sessions[name].prefix.tolist() == speaker.client.tokens

    @invariant()
    def what_is_not_reserved_is_free(self) -> None:
        slots = [session.slot for session in self.rig.engine.sessions]
        if all(isinstance(slot, Slot) for slot in slots):
            reserved = 16 * len({page for slot in slots for page in slot.table.tolist()})  # type: ignore[attr-defined]
        else:
            reserved = sum(slot.capacity for slot in slots)
        assert self.rig.engine.kv_tokens_free == KV_TOKENS - reserved

    def teardown(self) -> None:
        for speaker in self.speakers.values():
            while speaker.client.finish is FinishReason.NONE:
                speaker.client.round(EMPTY_GRAPH)
            assert speaker.client.published == speaker.expected


class RandomRoundsWithForks(RandomRounds):
    make = staticmethod(forking)


class RandomRoundsOnLlama(RandomRounds):
    make = staticmethod(llama)


class RandomRoundsOnQwen(RandomRounds):
    make = staticmethod(qwen)


BOUNDS = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}

TestScriptedTarget = RandomRounds.TestCase
TestScriptedTarget.settings = settings(max_examples=60, stateful_step_count=25, **BOUNDS)
TestForkingTarget = RandomRoundsWithForks.TestCase
TestForkingTarget.settings = settings(max_examples=40, stateful_step_count=25, **BOUNDS)
TestTinyLlama = RandomRoundsOnLlama.TestCase
TestTinyLlama.settings = settings(max_examples=6, stateful_step_count=15, **BOUNDS)
TestTinyQwen = RandomRoundsOnQwen.TestCase
TestTinyQwen.settings = settings(max_examples=3, stateful_step_count=15, **BOUNDS)
