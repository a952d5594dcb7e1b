"""Sessions take over the KV of prompt starts that others hold: exactly, within their scope, and never beyond the budget."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from contracts.errors import AlreadyExists, Internal, InvalidArgument, ResourceExhausted
from contracts.sampling import SamplingPolicy
from models.load import Implementation, load_backend
from tests.helpers.tiny_models import tiny_checkpoint
from tests.unit.verifier.desk import Desk
from tests.unit.verifier.rig import GREEDY, LOOKUP, VOCAB, Client, Rig, chain
from tests.unit.verifier.scripted_backend import ForkingBackend, ScriptedBackend, counting, hashing
from verifier.jobs import Close, Open

PROMPT = tuple(np.random.default_rng(3).integers(0, VOCAB - 1, 90).tolist())
SAMPLED = SamplingPolicy(temperature=1.0, seed=5, max_tokens=12, logprobs=3, ignore_eos=True)
HEAD = replace(LOOKUP, name="head", taps=("layer:0", "final_norm"))


def forking(**options: object) -> Rig:
    kv_tokens = int(str(options.pop("kv_tokens", 1024)))
    backend = ForkingBackend(hashing(VOCAB), vocab_size=VOCAB, kv_tokens=kv_tokens)
    return Rig(backend, kv_tokens=kv_tokens, prefill_chunk=4, **options)


def opened(rig: Rig, prompt: tuple[int, ...], name: str, policy: SamplingPolicy = GREEDY, *, scope: str = "") -> int:
    """Opens a session; how many of its prompt's rows were there."""
    request = replace(rig.opening(prompt, policy, session_id=name), cache_scope=scope)
    return rig.engine.open_session(request).cached_tokens


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("tiny"), vocab_size=VOCAB, logit_scale=2.0)


def model_rig(checkpoint: Path, implementation: Implementation, **options: object) -> Rig:
    backend = load_backend(
        checkpoint, dtype="float32", kv_budget_tokens=1024, threads=1, implementation=implementation, poison=True
    )
    return Rig(backend, kv_tokens=1024, prefill_chunk=16, **options)


@pytest.mark.parametrize("implementation", ["cpu-llvm", "cpu-torch", "transformers"])
@pytest.mark.parametrize("policy", [replace(GREEDY, logprobs=2, ignore_eos=True), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("live", [True, False], ids=["live", "ended"])
def test_a_shared_start_changes_no_token_and_no_bit_of_a_logprob(
    checkpoint: Path, implementation: Implementation, policy: SamplingPolicy, live: bool
) -> None:
    def tell(rig: Rig, *, shared: bool) -> list[object]:
        first = rig.open(PROMPT[:70], policy, session_id="first")
        for _ in range(5):
            first.round(chain(*PROMPT[70:73]))
        if not live:
            rig.engine.close_session("first")
        told: list[object] = []
        for name, prompt in (("whole", PROMPT[:70]), ("longer", PROMPT), ("parting", (*PROMPT[:50], 1, 2, 3))):
            request = rig.opening(prompt, policy, session_id=name)
            cached = rig.engine.open_session(request).cached_tokens
            assert (cached >= 48) == shared
            client = Client(rig.engine, request, list(prompt))
            while not client.finish:
                client.round(chain(*PROMPT[2:5]))
            told += [(receipt.tokens, receipt.logprobs) for receipt in client.receipts]
        return told

    alone = tell(model_rig(checkpoint, implementation, share_prefixes=False), shared=False)
    assert tell(model_rig(checkpoint, implementation), shared=True) == alone


@pytest.mark.parametrize("implementation", ["cpu-llvm", "cpu-torch", "transformers"])
def test_the_next_turn_of_a_conversation_prefills_only_what_is_new(
    checkpoint: Path, implementation: Implementation
) -> None:
    rig = model_rig(checkpoint, implementation)
    client = rig.open(PROMPT[:60], replace(GREEDY, ignore_eos=True), session_id="turn one")
    client.run()
    rig.engine.close_session("turn one")
    # Where rows depend on how a context was cut into passes, only whole chunks of the first prefill are the same.
    exact = len(client.tokens) - 1 if implementation == "cpu-llvm" else 48
    assert opened(rig, (*client.tokens, 1, 2, 3), "turn two") == exact


def test_nothing_is_shared_across_scopes_nor_where_it_is_off() -> None:
    rig = forking()
    assert opened(rig, PROMPT[:20], "a", scope="a") == 0
    assert opened(rig, PROMPT[:20], "b", scope="b") == 0
    assert opened(rig, PROMPT[:20], "none") == 0
    assert opened(rig, PROMPT[:20], "again", scope="a") == 19
    off = forking(share_prefixes=False)
    uncached = forking(cache_tokens=0)
    for rig in (off, uncached):
        opened(rig, PROMPT[:20], "a")
        rig.engine.close_session("a")
        assert opened(rig, PROMPT[:20], "b") == 0
        assert rig.engine.describe().kv_tokens_cached == 0
    assert opened(off, PROMPT[:20], "c") == 0
    assert opened(uncached, PROMPT[:20], "c") == 19


def test_a_scope_is_bounded_and_part_of_what_a_repeated_opening_must_repeat() -> None:
    rig = forking()
    with pytest.raises(InvalidArgument, match="cache_scope: 257"):
        opened(rig, PROMPT[:20], "a", scope="s" * 257)
    opened(rig, PROMPT[:20], "a", scope="s")
    assert opened(rig, PROMPT[:20], "a", scope="s") == 0
    with pytest.raises(AlreadyExists):
        opened(rig, PROMPT[:20], "a", scope="t")


def test_a_backend_without_forks_serves_as_before() -> None:
    rig = Rig(ScriptedBackend(counting(VOCAB), vocab_size=VOCAB))
    assert opened(rig, PROMPT[:20], "a") == opened(rig, PROMPT[:20], "b") == 0


def test_hidden_rows_come_along_where_the_holder_has_them(checkpoint: Path) -> None:
    def exported(rig: Rig, name: str, *sources: object) -> tuple[int, object]:
        request = rig.opening(PROMPT, session_id=name, sources=sources)
        cached = rig.engine.open_session(request).cached_tokens
        return cached, rig.engine.export_hidden(name, 0, len(PROMPT) - 1) if sources[0] is not LOOKUP else None

    _, expected = exported(model_rig(checkpoint, "cpu-llvm", share_prefixes=False), "fresh", HEAD)
    rig = model_rig(checkpoint, "cpu-llvm")
    assert exported(rig, "plain", LOOKUP)[0] == 0
    # The plain session kept no hidden rows, so this one runs its whole prompt.
    assert exported(rig, "head", HEAD) == (0, expected)
    assert exported(rig, "second head", HEAD) == (89, expected)
    _, one_tap = exported(rig, "one tap", replace(HEAD, taps=("layer:0",)))
    assert one_tap == expected.only(["layer:0"])  # type: ignore[attr-defined]
    for name in ("head", "second head", "one tap"):
        rig.engine.close_session(name)
    assert exported(rig, "after", HEAD) == (89, expected)


def test_ended_sessions_give_way_to_new_ones_the_least_recently_used_first() -> None:
    rig = forking(kv_tokens=120)
    for start in (0, 30, 60):
        opened(rig, PROMPT[start : start + 11], f"{start}", replace(GREEDY, max_tokens=1))
        rig.engine.close_session(f"{start}")
    assert rig.engine.describe().kv_tokens_cached == 30
    assert rig.engine.kv_tokens_free == 120
    assert opened(rig, PROMPT[:11], "used", replace(GREEDY, max_tokens=1)) == 10
    # 26 of 120 are taken, 64 free: 70 cost the one that was not used since.
    assert opened(rig, tuple([1] * 44), "big", replace(GREEDY, max_tokens=11)) == 0
    assert rig.engine.describe().kv_tokens_cached == 20
    rig.engine.close_session("big")
    rig.engine.close_session("used")
    assert opened(rig, PROMPT[60:71], "kept", replace(GREEDY, max_tokens=1)) == 10


def test_beyond_the_budget_a_session_is_refused_with_a_hint_and_the_cache_stays() -> None:
    rig = forking(kv_tokens=100)
    opened(rig, PROMPT[:11], "ended", replace(GREEDY, max_tokens=1))
    rig.engine.close_session("ended")
    opened(rig, PROMPT[20:50], "running", replace(GREEDY, max_tokens=16))
    with pytest.raises(ResourceExhausted) as refusal:
        opened(rig, PROMPT[40:70], "more")
    assert refusal.value.field == "kv_tokens"
    assert refusal.value.retry_after_ms
    assert rig.engine.describe().kv_tokens_cached == 10
    rig.engine.close_session("running")
    assert opened(rig, PROMPT[40:70], "more") == 0


def test_the_cache_keeps_to_its_limit() -> None:
    rig = forking(cache_tokens=25)
    for start in (0, 30, 60):
        opened(rig, PROMPT[start : start + 11], f"{start}")
        rig.engine.close_session(f"{start}")
    assert rig.engine.describe().kv_tokens_cached == 20
    assert [opened(rig, PROMPT[start : start + 11], f"again {start}") for start in (0, 30, 60)] == [0, 10, 10]


def test_a_conversation_leaves_its_latest_turn_alone() -> None:
    rig = forking()
    tokens: tuple[int, ...] = PROMPT[:8]
    for turn in range(4):
        client = rig.open(tokens, replace(GREEDY, ignore_eos=True, max_tokens=5), session_id=f"{turn}")
        client.run()
        rig.engine.close_session(f"{turn}")
        assert rig.engine.describe().kv_tokens_cached == len(client.tokens) - 1
        tokens = (*client.tokens, turn)


def test_prompts_that_arrive_together_are_prefilled_once() -> None:
    desk = Desk(forking())
    long, parting = PROMPT[:41], (*PROMPT[:33], 1, 1)
    for name, prompt in (("one", long), ("two", long), ("three", parting)):
        desk.ask(name, Open(desk.rig.opening(prompt, session_id=name)))
    desk.drain()
    assert [desk.answers[name].cached_tokens for name in ("one", "two", "three")] == [0, 40, 33]
    assert sum(sum(rows) for rows in desk.rig.backend.passes) == 40 + 1  # type: ignore[attr-defined]


def test_one_that_waited_for_a_prefill_that_never_ends_goes_on_alone() -> None:
    desk = Desk(forking())
    for name in ("one", "two"):
        desk.ask(name, Open(desk.rig.opening(PROMPT[:41], session_id=name)))
    for _ in range(4):
        desk.worker.step()
    desk.ask("close", Close("one"))
    desk.drain()
    # What the first had by then was left in the cache.
    assert 0 < desk.answers["two"].cached_tokens < 40
    assert desk.answers["two"].prefix_len == 41


@pytest.mark.parametrize("name", ["fork", "park"])
def test_a_fault_in_sharing_leaks_nothing(name: str) -> None:
    rig = forking()
    opened(rig, PROMPT[:20], "first")
    rig.backend.faults[name] = RuntimeError("broken")  # type: ignore[attr-defined]
    if name == "fork":
        with pytest.raises(Exception, match="broken"):
            opened(rig, PROMPT[:20], "second")
    rig.engine.close_session("first")
    assert opened(rig, PROMPT[30:50], "third") == 0
    rig.engine.close_session("third")
    assert rig.engine.kv_tokens_free == 1024


@pytest.mark.parametrize("late", [False, True])
def test_rows_of_a_prefill_that_failed_are_never_taken_over(late: bool) -> None:
    rig = forking()
    rig.backend.faults["commit"] = RuntimeError("broken")  # type: ignore[attr-defined]
    if late:
        rig.backend.late.add("commit")  # type: ignore[attr-defined]
    with pytest.raises(Internal):
        opened(rig, PROMPT[:20], "first")
    assert opened(rig, PROMPT[:20], "second") == 0


def test_a_fault_while_taking_over_ends_that_session_alone() -> None:
    desk = Desk(forking())
    for name in ("one", "two"):
        desk.ask(name, Open(desk.rig.opening(PROMPT[:41], session_id=name)))
    desk.worker.step()
    desk.rig.backend.faults["fork"] = RuntimeError("broken")  # type: ignore[attr-defined]
    desk.drain()
    assert desk.answers["one"].prefix_len == 41
    assert isinstance(desk.answers["two"], Internal)
    desk.rig.engine.close_session("one")
    assert desk.rig.engine.kv_tokens_free == 1024


def test_thousands_of_tiny_sessions_leave_the_books_flat(checkpoint: Path) -> None:
    rig = model_rig(checkpoint, "cpu-torch", cache_tokens=256)
    rng = np.random.default_rng(0)
    one = replace(GREEDY, max_tokens=2)
    total = rig.engine.describe().kv_tokens_total
    for number in range(2000):
        prompt = tuple(rng.integers(0, 3, int(rng.integers(1, 5))).tolist())
        client = rig.open(prompt, one, session_id=f"{number}", node_budget=2)
        if number % 5:
            client.round(chain(1, 2))
        rig.engine.close_session(f"{number}")
        described = rig.engine.describe()
        assert described.kv_tokens_free == total
        assert described.kv_tokens_cached <= 256
    store = rig.engine._store
    assert not store._live
    assert len(store._parked) <= 256 // 16
    assert sum(map(len, store._indexes.values())) == len(store._parked)
