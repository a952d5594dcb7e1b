"""A prompt that fills while others are served: how many of its rows ride in a pass, and that nobody's bits change."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from contracts.errors import Internal
from contracts.ports import SessionOpened
from contracts.receipt import Receipt
from contracts.sampling import SamplingPolicy
from models.backend import PassResult, RowBlock
from models.load import Implementation, load_backend
from tests.helpers.tiny_models import tiny_checkpoint
from tests.unit.verifier.desk import Desk
from tests.unit.verifier.rig import GREEDY, VOCAB, Client, Rig, chain
from tests.unit.verifier.scripted_backend import ScriptedBackend, counting
from verifier.jobs import Open, Verify
from verifier.step_clock import StepClock

STEP_MS, ROW_MS, CHUNK = 20, 2, 64
PROMPT = tuple(np.random.default_rng(8).integers(0, VOCAB - 1, 101).tolist())


class Timed(ScriptedBackend):
    """A pass takes 18 ms and 2 a row, so a pass of one row takes 20."""

    def __init__(self, *, row_invariant_up_to: int) -> None:
        super().__init__(counting(VOCAB), vocab_size=VOCAB, context_length=1024, kv_tokens=4096)
        self.info = replace(self.info, row_invariant_up_to=row_invariant_up_to)
        self.rig: Rig

    def forward(self, blocks: Sequence[RowBlock], *, taps: Sequence[str] = ()) -> PassResult:
        result = super().forward(blocks, taps=taps)
        rows = sum(len(block.token_ids) for block in blocks)
        self.rig.clock.advance_ms(STEP_MS + ROW_MS * (rows - 1))
        return result


def desk(*, row_invariant_up_to: int = 1 << 20) -> Desk:
    backend = Timed(row_invariant_up_to=row_invariant_up_to)
    backend.rig = Rig(backend, kv_tokens=4096, prefill_chunk=CHUNK)
    backend.rig.engine.warm_up()
    at = Desk(backend.rig)
    backend.passes.clear()
    return at


def passes(at: Desk) -> list[list[int]]:
    assert isinstance(at.rig.backend, Timed)
    return at.rig.backend.passes


def ask_long(at: Desk, name: str = "long") -> None:
    at.ask(name, Open(at.rig.opening([1] * 301, session_id=name)))


def stream(at: Desk, client: Client, until: str, *, candidates: int = 0) -> None:
    """One round after another of a session that always has one waiting."""
    policy_left = client.opening.policy.max_tokens
    for turn in range(policy_left - 1):
        at.ask(f"round {turn}", Verify(client.request(chain(*[7] * candidates))))
        at.worker.step()
        client.absorb(at.answers.pop(f"round {turn}"))
        if until in at.answers:
            return
    raise AssertionError("the prompt never got there")


def streaming_client(at: Desk) -> Client:
    opening = at.rig.opening((1, 2), replace(GREEDY, max_tokens=200, ignore_eos=True), session_id="stream")
    at.ask("stream", Open(opening))
    at.drain()
    passes(at).clear()
    return Client(at.rig.engine, opening, [1, 2])


def test_prompt_rows_join_the_rounds_pass_and_make_it_no_more_than_twice_as_long() -> None:
    at = desk()
    client = streaming_client(at)
    ask_long(at)
    stream(at, client, "long")
    whole = passes(at)[:-1]
    # 20 ms of a pass with one row more are ten rows of 2 ms.
    assert {tuple(rows) for rows in whole} == {(1, 10)}
    assert sum(rows[1] for rows in passes(at)) == 300


def test_a_round_of_many_candidates_leaves_room_for_more_prompt_rows() -> None:
    at = desk()
    client = streaming_client(at)
    ask_long(at)
    stream(at, client, "long", candidates=10)
    # 11 rows take 40 ms, and 20 rows as long again.
    assert {tuple(rows) for rows in passes(at)[:-1]} == {(11, 20)}


def test_a_prompt_runs_at_whole_speed_when_nobody_is_served() -> None:
    at = desk()
    ask_long(at)
    at.drain()
    assert passes(at) == [[64], [64], [64], [64], [44]]


def test_a_prompt_alone_between_rounds_keeps_to_a_pass_that_a_round_can_wait_for() -> None:
    at = desk()
    client = streaming_client(at)
    at.ask("round", Verify(client.request()))
    at.worker.step()
    ask_long(at)
    at.worker.step()
    assert passes(at) == [[1], [11]]
    at.rig.clock.advance_ms(1_000)
    at.worker.step()
    assert passes(at)[-1] == [64]


def test_where_rows_are_not_alike_prompts_stay_whole_chunks_and_rounds_have_as_much_of_the_time() -> None:
    at = desk(row_invariant_up_to=0)
    client = streaming_client(at)
    at.ask("first", Verify(client.request()))
    at.worker.step()
    client.absorb(at.answers["first"])
    passes(at).clear()
    ask_long(at)
    stream(at, client, "long")
    assert [rows for rows in passes(at) if rows != [1]] == [[64], [64], [64], [64], [44]]
    # A chunk of 64 rows takes 146 ms: nine passes of 20 ms are served before the next.
    chunks = [index for index, rows in enumerate(passes(at)) if rows == [64]]
    assert [later - sooner for sooner, later in itertools.pairwise(chunks)] == [10, 10, 10]


def test_a_pass_is_charged_to_prompt_and_rounds_by_their_rows() -> None:
    at = desk()
    client = streaming_client(at)
    at.ask("long", Open(at.rig.opening([1] * 11, session_id="long")))
    at.ask("round", Verify(client.request()))
    at.worker.step()
    receipt, opened = at.answers["round"], at.answers["long"]
    assert passes(at) == [[1, 10]]
    assert (receipt.pass_rows, receipt.pass_sessions) == (11, 1)
    assert receipt.timings.target_us == pytest.approx(40_000 / 11, rel=1e-3)
    assert opened.prefill_us == pytest.approx(40_000 * 10 / 11, rel=1e-3)


def test_a_fault_in_a_shared_pass_costs_the_rounds_nothing_and_the_prompt_is_tried_alone() -> None:
    at = desk()
    client = streaming_client(at)
    assert isinstance(at.rig.backend, Timed)
    at.rig.backend.faults["forward"] = RuntimeError("one pass broke")
    at.ask("long", Open(at.rig.opening([1] * 11, session_id="long")))
    at.ask("round", Verify(client.request()))
    at.drain()
    assert isinstance(at.answers["round"], Receipt)
    assert isinstance(at.answers["long"], SessionOpened)
    assert passes(at) == [[1], [10]]


def test_a_prompt_whose_rows_cannot_be_committed_is_dropped_and_the_rounds_go_on() -> None:
    at = desk()
    client = streaming_client(at)
    backend = at.rig.backend
    assert isinstance(backend, Timed)
    commit = backend.commit

    def broken(slot: object, keep: Sequence[int]) -> None:
        if len(keep) > 1:
            raise RuntimeError("no memory")
        commit(slot, keep)  # type: ignore[arg-type]

    backend.commit = broken  # type: ignore[method-assign]
    at.ask("long", Open(at.rig.opening([1] * 11, session_id="long")))
    at.ask("round", Verify(client.request()))
    at.drain()
    assert isinstance(at.answers["round"], Receipt)
    assert isinstance(at.answers["long"], Internal)
    assert len(backend.slots) == 1


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("tiny"), vocab_size=VOCAB, logit_scale=2.0)


@pytest.mark.parametrize("implementation", ["cpu-llvm", "cpu-torch"])
def test_no_bit_of_anybodys_text_depends_on_what_shared_its_passes(
    checkpoint: Path, implementation: Implementation
) -> None:
    policy = SamplingPolicy(temperature=1.0, seed=5, max_tokens=40, logprobs=3, ignore_eos=True)

    def new_desk() -> Desk:
        backend = load_backend(
            checkpoint,
            kv_budget_tokens=1024,
            threads=1,
            implementation=implementation,
            poison=True,
        )
        return Desk(Rig(backend, kv_tokens=1024, prefill_chunk=16, share_prefixes=False))

    def told(client: Client) -> list[object]:
        return [(receipt.tokens, receipt.logprobs) for receipt in client.receipts]

    def alone(prompt: tuple[int, ...]) -> list[object]:
        client = new_desk().rig.open(prompt, policy)
        while not client.finish:
            client.round(chain(*PROMPT[2:5]))
        return told(client)

    at = new_desk()
    first = at.rig.open(PROMPT[:9], policy, session_id="first")
    second = at.rig.opening(PROMPT, policy, session_id="second")
    at.ask("second", Open(second))
    turn = 0
    while "second" not in at.answers:
        at.ask(f"round {turn}", Verify(first.request(chain(*PROMPT[2:5]))))
        at.worker.step()
        first.absorb(at.answers[f"round {turn}"])
        turn += 1
    joined = Client(at.rig.engine, second, list(PROMPT))
    for client in (joined, first):
        while not client.finish:
            client.round(chain(*PROMPT[2:5]))
    assert turn > 3
    assert told(joined) == alone(PROMPT)
    assert told(first) == alone(PROMPT[:9])


def test_what_a_row_adds_is_learned_from_passes_of_several_sizes_and_outlives_those_of_one() -> None:
    steps = StepClock()
    assert steps.line() is None
    for rows in (1, 8, 16, 32):
        steps.record(rows, 18.0 + 2.0 * rows)
    line = steps.line()
    assert line is not None
    assert line.row_us == pytest.approx(2.0, rel=0.02)
    for _ in range(100):
        steps.record(1, 40.0)
    slow = steps.line()
    assert slow is not None
    # Twice as slow a machine: a row is taken to cost twice as much.
    assert slow.row_us == pytest.approx(4.0, rel=0.02)


def test_a_stall_is_not_taken_for_what_rows_cost() -> None:
    steps = StepClock()
    for _ in range(5):
        for rows in (1, 11):
            steps.record(rows, 18.0 + 2.0 * rows)
    steps.record(11, 5_000.0)
    line = steps.line()
    assert line is not None
    assert line.row_us == pytest.approx(2.0, rel=0.05)
