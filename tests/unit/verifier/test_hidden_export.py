"""The rows a session exports are those of a fresh prefill of what was published, whatever was rejected on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from contracts.errors import FailedPrecondition, InvalidArgument, NotFound
from contracts.graph import EMPTY_GRAPH
from contracts.hidden import HiddenRows, joined
from models.backend import Backend, RowBlock
from models.load import load_backend
from tests.helpers.tiny_models import tiny_checkpoint
from tests.unit.verifier.rig import GREEDY, LOOKUP, Client, Rig, tree, verify_one
from verifier import hidden_log
from verifier.jobs import ExportHidden, Verify
from verifier.worker import Worker

TAPS = ("final_norm", "layer:0")
PROMPT = (5, 9, 2, 7, 11, 3, 8)
HEAD = replace(LOOKUP, name="head", taps=("layer:0",))
OTHER = replace(LOOKUP, name="other", taps=("final_norm",))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("tiny"), vocab_size=20)


@pytest.fixture(params=["cpu-torch", "cpu-llvm", "transformers"])
def fresh_backend(request: pytest.FixtureRequest, checkpoint: Path) -> Callable[[], Backend]:
    return lambda: load_backend(
        checkpoint, dtype="float32", kv_budget_tokens=512, threads=1, implementation=request.param
    )


def rig(backend: Backend, **options: object) -> Rig:
    made = Rig(backend, kv_tokens=512, **options)
    made.engine._eos_ids = ()
    return made


def prefilled(backend: Backend, tokens: Sequence[int]) -> dict[str, np.ndarray]:
    """Rows of one pass over the tokens."""
    slot = backend.allocate(len(tokens))
    order = np.arange(len(tokens))
    block = RowBlock(slot, np.array(tokens), order, order - 1, order[:0])
    hidden = backend.forward([block], taps=TAPS).hidden
    rows = {tap: hidden[tap][0].numpy().copy() for tap in TAPS}
    backend.release(slot)
    return rows


def wide(client: Client, plain: Sequence[int], right: int) -> None:
    """A round whose tree has wrong branches at every depth beside `right` tokens of what plain decoding says."""
    said = len(client.published)
    rows: list[tuple[int, int]] = []
    parent = -1
    for depth in range(right + 1):
        token = plain[said + depth]
        rows += [((token + 3) % 19, parent), ((token + 7) % 19, parent)]
        if depth < right:
            rows.append((token, parent))
            parent = len(rows) - 1
    receipt = client.round(tree(rows))
    assert len(receipt.accepted_rows) == right


def exported(client: Client) -> HiddenRows:
    return client.engine.export_hidden(client.session_id, 0, len(client.tokens) - 1)


def test_rows_are_those_of_a_fresh_prefill_after_rounds_with_rejected_branches(
    fresh_backend: Callable[[], Backend],
) -> None:
    backend = fresh_backend()
    engine = rig(backend, prefill_chunk=3)
    plain = engine.open(PROMPT, session_id="plain").run()
    client = engine.open(PROMPT, sources=(HEAD, OTHER))
    for right in (0, 2, 1, 3):
        wide(client, plain, right)
    client.round()
    assert client.published == plain[: len(client.published)]
    rows = exported(client)
    assert (rows.start, rows.count) == (0, len(client.tokens) - 1)
    expected = prefilled(backend, client.tokens[:-1])
    for tap in TAPS:
        np.testing.assert_allclose(rows.taps[tap], expected[tap], atol=2e-5)
    # The receipts' rows are these very rows, in order and without a gap.
    carried = joined([receipt.hidden for receipt in client.receipts if receipt.hidden is not None])
    assert carried == rows.between(len(PROMPT) - 1, rows.stop)
    assert [receipt.hidden_handle for receipt in client.receipts] == [f"s@{n}" for n in range(1, 6)]


def test_two_sessions_in_one_pass_keep_their_own_rows(fresh_backend: Callable[[], Backend]) -> None:
    backend = fresh_backend()
    engine = rig(backend)
    clients = [
        engine.open(PROMPT, session_id="a", sources=(HEAD,)),
        engine.open(PROMPT[::-1], session_id="b", sources=(OTHER,)),
        engine.open(PROMPT, session_id="c"),
    ]
    for _ in range(3):
        outcomes = engine.engine.verify_many([client.request(EMPTY_GRAPH) for client in clients])
        for client, outcome in zip(clients, outcomes, strict=True):
            client.absorb(outcome)
    assert clients[2].receipts[-1].hidden is None
    assert clients[2].receipts[-1].hidden_handle == ""
    for client, tap in zip(clients, ("layer:0", "final_norm"), strict=False):
        rows = exported(client)
        assert list(rows.taps) == [tap]
        np.testing.assert_allclose(rows.taps[tap], prefilled(backend, client.tokens[:-1])[tap], atol=2e-5)


def test_a_repeat_and_a_kept_receipt_carry_the_same_rows(fresh_backend: Callable[[], Backend]) -> None:
    client = rig(fresh_backend()).open(PROMPT, sources=(HEAD,))
    request = client.request(tree([(4, -1), (6, -1)]))
    receipt = verify_one(client.engine, request)
    assert receipt.hidden is not None
    kept = receipt.hidden.taps["layer:0"].copy()
    assert verify_one(client.engine, request) is receipt
    client.absorb(receipt)
    client.absorb(verify_one(client.engine, client.request()))
    assert client.engine.get_receipt("s", 0) is receipt
    assert np.array_equal(receipt.hidden.taps["layer:0"], kept)
    assert client.engine.export_hidden("s", 2, 5) == client.engine.export_hidden("s", 2, 5)


def test_a_path_cut_by_the_limit_exports_what_was_committed(fresh_backend: Callable[[], Backend]) -> None:
    engine = rig(fresh_backend())
    plain = engine.open(PROMPT, replace(GREEDY, max_tokens=6), session_id="plain").run()
    client = engine.open(PROMPT, replace(GREEDY, max_tokens=3), sources=(HEAD,))
    receipt = client.round(tree([(plain[0], -1), (plain[1], 0), (plain[2], 1), (plain[3], 2)]))
    assert len(receipt.tokens) == 3
    assert receipt.hidden is not None
    assert receipt.hidden.stop == receipt.prefix_len - 1
    assert exported(client).count == receipt.prefix_len - 1


def test_an_unknown_tap_is_refused_by_name_before_anything_is_held() -> None:
    engine = Rig()
    free = engine.engine.kv_tokens_free
    for tap in ("layer:99", "logits", "layer:-1", ""):
        with pytest.raises(InvalidArgument, match="source 'head'") as refused:
            engine.open(sources=(LOOKUP, replace(HEAD, taps=(tap,))))
        assert refused.value.field == "manifest.sources.taps"
        assert repr(tap) in refused.value.message
    assert engine.engine.kv_tokens_free == free


def test_ranges_that_cannot_be_exported_are_refused(
    fresh_backend: Callable[[], Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = rig(fresh_backend())
    client = engine.open(PROMPT, sources=(HEAD, OTHER))
    assert exported(client).count == len(PROMPT) - 1
    for start, stop, kind, field in (
        (-1, 3, InvalidArgument, "start"),
        (3, 3, InvalidArgument, "start"),
        (0, len(PROMPT), FailedPrecondition, "stop"),
    ):
        with pytest.raises(kind) as refused:
            engine.engine.export_hidden("s", start, stop)
        assert refused.value.field == field
    with pytest.raises(NotFound):
        engine.engine.export_hidden("gone", 0, 1)
    engine.open(PROMPT, session_id="plain")
    with pytest.raises(FailedPrecondition) as refused:
        engine.engine.export_hidden("plain", 0, 1)
    assert refused.value.field == "taps"
    # Two taps of 32 numbers make rows of 256 bytes.
    monkeypatch.setattr(hidden_log, "MAX_PART_BYTES", 2 * 256 + 1)
    assert engine.engine.export_hidden("s", 1, 6).stop == 3
    monkeypatch.setattr(hidden_log, "MAX_PART_BYTES", 1)
    assert engine.engine.export_hidden("s", 1, 6).stop == 2


def test_a_fault_in_a_round_leaves_the_rows_in_step_with_the_prefix() -> None:
    engine = Rig()
    client = engine.open(sources=(replace(LOOKUP, taps=("final_norm",)),))
    client.round()
    engine.scripted.faults["commit"] = RuntimeError("boom")
    with pytest.raises(Exception, match="boom"):
        client.round()
    client.round(tree([((client.tokens[-1] + 1) % 20, -1)]))
    rows = exported(client).taps["final_norm"]
    fresh = Rig().open(tuple(client.tokens), session_id="t", sources=(replace(LOOKUP, taps=("final_norm",)),))
    assert np.array_equal(rows, exported(fresh).taps["final_norm"])
    assert len(set(rows[:, 0].tolist())) == len(rows)


def test_an_export_waits_for_the_rounds_before_it() -> None:
    engine = Rig()
    client = engine.open(sources=(replace(LOOKUP, taps=("final_norm",)),))
    worker = Worker(engine.engine, clock=engine.clock)
    answers: list[object] = []
    length = len(client.tokens)
    worker.submit(ExportHidden("s", 0, length), answers.append)
    worker.submit(Verify(client.request()), answers.append)
    while worker.step():
        pass
    assert isinstance(answers[1], HiddenRows)
    assert answers[1].count == length
