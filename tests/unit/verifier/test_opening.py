from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from contracts.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted
from contracts.ports import OpenSession
from contracts.sampling import SamplingPolicy
from tests.unit.verifier.rig import EOS, GREEDY, LOOKUP, VOCAB, Rig, chain, verify_one


def test_prefill_commits_all_but_the_last_prompt_token() -> None:
    rig = Rig()
    rig.open((4, 5, 6, 7))
    assert rig.scripted.slots[0].committed == [4, 5, 6]


def test_a_prompt_of_one_token_needs_no_pass() -> None:
    rig = Rig()
    client = rig.open((4,))
    assert rig.scripted.passes == []
    assert client.round().tokens == (5,)


def test_a_long_prompt_is_prefilled_in_chunks_that_ask_for_no_logits() -> None:
    rig = Rig(prefill_chunk=4)
    prompt = [token % VOCAB for token in range(11)]
    rig.engine.begin_session(rig.opening(prompt))
    assert rig.engine.prefill("s") is None
    assert rig.engine.prefill("s") is None
    opened = rig.engine.prefill("s")
    assert opened is not None
    assert (opened.prefix_len, opened.generation) == (11, 0)
    assert opened.prefill_us > 0
    assert rig.scripted.passes == [[4], [4], [2]]
    assert rig.scripted.slots[0].committed == prompt[:-1]


def test_opening_again_gives_the_same_answer_and_reserves_nothing_more() -> None:
    rig = Rig()
    opening = rig.opening()
    first = rig.engine.open_session(opening)
    free = rig.engine.kv_tokens_free
    assert rig.engine.open_session(replace(opening, lease_ms=1000)) == first
    assert rig.engine.kv_tokens_free == free
    assert len(rig.scripted.slots) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"prompt": (1, 2, 4)},
        {"policy": replace(GREEDY, max_tokens=15)},
        {"published": 1},
        {"node_budget": 3},
    ],
)
def test_a_session_id_in_use_is_refused_to_another_request(other: dict[str, Any]) -> None:
    rig = Rig()
    rig.open()
    with pytest.raises(AlreadyExists, match="session_id"):
        rig.engine.open_session(rig.opening(**other))
    rig.engine.open_session(rig.opening())


def test_a_session_in_prefill_refuses_rounds() -> None:
    rig = Rig(prefill_chunk=1)
    client = rig.open(session_id="other")
    rig.engine.begin_session(rig.opening())
    request = client.request(session_id="s")
    with pytest.raises(FailedPrecondition, match="prefill"):
        verify_one(rig.engine, request)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"prompt": ()}, "prompt"),
        ({"prompt": (1, VOCAB)}, "prompt"),
        ({"prompt": (-1, 1)}, "prompt"),
        ({"prompt": tuple([1] * 120)}, "prompt"),
        ({"session_id": ""}, "session_id"),
        ({"session_id": "x" * 300}, "session_id"),
        ({"lease_ms": 0}, "lease_ms"),
        ({"published": -1}, "published"),
        ({"published": 3}, "published"),
        ({"verifier": "oracle"}, "manifest.verifier"),
        ({"verifier": ""}, "manifest.verifier"),
        ({"exactness": "more or less"}, "manifest.exactness"),
        ({"node_budget": 33}, "manifest.node_budget"),
        ({"node_budget": -1}, "manifest.node_budget"),
        ({"max_depth": -1}, "manifest.max_depth"),
        ({"policy": replace(GREEDY, temperature=float("nan"))}, "sampling.temperature"),
        ({"policy": replace(GREEDY, top_p=0.0)}, "sampling.top_p"),
        ({"policy": replace(GREEDY, max_tokens=0)}, "sampling.max_tokens"),
        ({"policy": replace(GREEDY, stop_ids=(VOCAB,))}, "sampling.stop_ids"),
    ],
)
def test_a_bad_request_is_refused_by_field_and_costs_nothing(change: dict[str, Any], field: str) -> None:
    rig = Rig()
    with pytest.raises(InvalidArgument) as refusal:
        rig.engine.open_session(rig.opening(**change))
    assert refusal.value.field == field
    assert rig.scripted.slots == []
    rig.open()


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("checkpoint_digest", "d" * 64),
        ("tokenizer_digest", "u" * 64),
        ("dtype", "bfloat16"),
        ("backend", "cuda-torch"),
        ("hardware", "abacus"),
        ("vocab_size", VOCAB + 1),
        ("model", "another"),
        ("row_invariant_up_to", 3),
        ("batching", "pass_rows=1,prefill_chunk=1"),
    ],
)
def test_a_manifest_sealed_for_another_target_is_refused(part: str, value: object) -> None:
    rig = Rig()
    target = replace(rig.engine.describe().target, **{part: value})
    with pytest.raises(FailedPrecondition) as refusal:
        rig.engine.open_session(rig.opening(target=target))
    assert refusal.value.field == f"manifest.target.{part}"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"topology_compiler": "by-hand/0"}, "manifest.topology_compiler"),
        ({"rng": "dice/1"}, "manifest.rng"),
        ({"sampling": replace(GREEDY, seed=5).to_json()}, "manifest.sampling"),
        ({"sources": (replace(LOOKUP, tokenizer_digest="x" * 64),)}, "sources.tokenizer_digest"),
        ({"sources": (replace(LOOKUP, target_digest="x" * 64),)}, "sources.target_digest"),
        ({"policy": SamplingPolicy(max_tokens=8), "verifier": "rejection"}, "sources.semantics"),
    ],
)
def test_a_manifest_that_binds_what_does_not_fit_is_refused(change: dict[str, Any], field: str) -> None:
    rig = Rig()
    with pytest.raises(FailedPrecondition) as refusal:
        rig.engine.open_session(rig.opening(**change))
    assert refusal.value.field == field


def test_a_sealed_policy_that_came_over_the_wire_as_lists_is_the_same_policy() -> None:
    rig = Rig()
    policy = replace(GREEDY, stop_ids=(3, 4))
    sampling = policy.to_json() | {"stop_ids": [3, 4]}
    rig.engine.open_session(rig.opening(policy=policy, sampling=sampling))


def test_a_session_larger_than_the_whole_budget_is_refused_for_good() -> None:
    rig = Rig(kv_tokens=30)
    with pytest.raises(InvalidArgument, match="whole budget is 30"):
        rig.engine.open_session(rig.opening())


def test_the_engine_itself_refuses_over_a_spent_budget_with_a_hint_until_a_session_closes() -> None:
    rig = Rig(kv_tokens=40)
    first = rig.open(session_id="first")
    with pytest.raises(ResourceExhausted) as refusal:
        rig.engine.open_session(rig.opening(session_id="second"))
    assert refusal.value.field == "kv_tokens"
    assert refusal.value.retry_after_ms is not None
    rig.engine.close_session(first.session_id)
    rig.open(session_id="second")


def test_a_description_states_target_algorithms_and_what_is_free() -> None:
    rig = Rig(hardware="abacus x2")
    before = rig.engine.describe()
    assert before.kv_tokens_free == before.kv_tokens_total == rig.scripted.kv_tokens
    assert before.target.hardware == "abacus x2"
    assert (before.eos_ids, before.max_rows) == ((EOS,), 32)
    assert {"greedy", "membership", "rejection"} <= {capability.name for capability in before.capabilities}
    rig.open((1, 2, 3), replace(GREEDY, max_tokens=10), node_budget=5)
    assert rig.engine.describe().kv_tokens_free == before.kv_tokens_total - (3 + 10 - 1 + 5)


def test_the_reservation_is_exactly_what_the_fullest_round_needs() -> None:
    rig = Rig()
    client = rig.open((1, 2, 3), replace(GREEDY, max_tokens=4), node_budget=3)
    while client.finish == "":
        last = client.tokens[-1]
        client.round(chain(last + 5, last + 6, last + 7) if len(client.published) < 2 else chain(last + 5))
    assert len(client.published) == 4


def test_closing_twice_or_an_unknown_session_is_harmless() -> None:
    rig = Rig()
    client = rig.open()
    rig.engine.close_session(client.session_id)
    rig.engine.close_session(client.session_id)
    rig.engine.close_session("never")
    assert rig.scripted.slots == []
    with pytest.raises(NotFound):
        client.round()


def test_a_reopened_session_counts_what_an_earlier_replica_published() -> None:
    policy = replace(GREEDY, max_tokens=5)
    whole = Rig().open((1, 2, 3), policy).run()
    rig = Rig()
    rest = rig.open((1, 2, 3, *whole[:2]), policy, published=2)
    assert rest.run() == whole[2:]
    assert rest.finish == "length"


def test_a_reopened_session_keeps_the_sampled_text() -> None:
    policy = SamplingPolicy(temperature=3.0, seed=7, max_tokens=6, ignore_eos=True, presence_penalty=0.5)
    whole = Rig().open((1, 2, 3), policy).run()
    assert Rig().open((1, 2, 3, *whole[:4]), policy, published=4).run() == whole[4:]


def test_prompt_dtypes_other_than_int64_are_taken_if_they_hold_integers() -> None:
    rig = Rig()
    opening = rig.opening()
    rig.engine.open_session(replace(opening, prompt=opening.prompt.astype(np.uint32)))
    floats = OpenSession("f", opening.manifest, opening.policy, opening.prompt.astype(np.float32))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="integers"):
        rig.engine.open_session(floats)


def test_a_reopened_session_penalises_what_an_earlier_replica_published() -> None:
    def favourites(_: tuple[int, ...]) -> np.ndarray:
        logits = np.zeros(VOCAB, dtype=np.float32)
        logits[5], logits[6] = 8.0, 7.0
        return logits

    policy = replace(GREEDY, presence_penalty=2.0, max_tokens=5)
    whole = Rig(script=favourites).open((1,), policy).run()
    assert whole == [5, 6, 5, 5, 5]
    assert Rig(script=favourites).open((1, *whole[:2]), policy, published=2).run() == whole[2:]
