"""Hidden rows at the proposer: taken in order, kept apart, bounded, and missed by name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from contracts.capability import SourceDescription
from contracts.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from contracts.hidden import HIDDEN_BASE, HiddenRows
from contracts.ports import ProposeRequest
from contracts.proposal import Proposal
from proposer.hidden_store import HiddenStore
from proposer.host import SourceHost
from proposer.prompt_lookup import PromptLookup
from tests.unit.proposer.rounds import Rounds, session_manifest

WIDTH = 4
TAPS = ("final_norm", "layer:1")


def rows(start: int, stop: int, *, taps: tuple[str, ...] = TAPS, width: int = WIDTH, seed: int = 0) -> HiddenRows:
    """Row i of a tap is the same whatever range it comes in."""
    every = {tap: np.random.default_rng((seed, tap == TAPS[0])).random((2000, width), np.float32) for tap in taps}
    return HiddenRows(start, {tap: table[start:stop] for tap, table in every.items()})


def read(store: HiddenStore, session_id: str, start: int, stop: int, taps: tuple[str, ...] = TAPS) -> HiddenRows:
    return HiddenRows(start, {t: r.numpy() for t, r in store.held(session_id, taps).rows(start, stop).items()})


def test_rows_come_back_as_they_came_however_they_were_cut_and_repeated() -> None:
    store = HiddenStore(hidden_size=WIDTH)
    for start, stop in ((0, 7), (7, 8), (3, 400), (0, 2), (400, 1300)):
        store.take("s", rows(start, stop))
    assert read(store, "s", 0, 1300) == rows(0, 1300)
    assert read(store, "s", 398, 402) == rows(398, 402)


def test_a_gap_is_named_and_nothing_of_it_is_kept() -> None:
    store = HiddenStore(hidden_size=WIDTH)
    for start in (1, 5):
        with pytest.raises(FailedPrecondition) as refused:
            store.take("s", rows(start, 9))
        assert refused.value.field == HIDDEN_BASE
    store.take("s", rows(0, 5))
    with pytest.raises(FailedPrecondition) as refused:
        store.take("s", rows(6, 9))
    assert refused.value.field == HIDDEN_BASE
    with pytest.raises(FailedPrecondition) as refused:
        read(store, "s", 0, 6)
    assert refused.value.field == HIDDEN_BASE
    assert read(store, "s", 0, 5) == rows(0, 5)


def test_rows_begin_at_their_base_and_nothing_before_it_is_there() -> None:
    store = HiddenStore(hidden_size=WIDTH)
    with pytest.raises(FailedPrecondition) as refused:
        store.take("s", rows(904, 910).based(900))
    assert refused.value.field == HIDDEN_BASE
    for start, stop in ((900, 907), (907, 908), (903, 1300)):
        store.take("s", rows(start, stop).based(900))
    assert store.held("s", TAPS).base == 900
    assert store.held("s", TAPS).count == 1300
    assert read(store, "s", 900, 1300) == rows(900, 1300)
    with pytest.raises(FailedPrecondition) as refused:
        read(store, "s", 899, 905)
    assert refused.value.field == HIDDEN_BASE
    # What a session takes is in proportion to what it holds.
    assert store.bytes_held < 2 * 1300 * WIDTH * 4


def test_rows_of_another_base_take_the_place_of_those_held_and_only_from_their_start() -> None:
    store = HiddenStore(hidden_size=WIDTH)
    store.take("s", rows(0, 9))
    with pytest.raises(FailedPrecondition) as refused:
        store.take("s", rows(6, 9).based(5))
    assert refused.value.field == HIDDEN_BASE
    assert read(store, "s", 0, 9) == rows(0, 9)
    store.take("s", rows(5, 9).based(5))
    assert read(store, "s", 5, 9) == rows(5, 9)
    with pytest.raises(FailedPrecondition):
        read(store, "s", 4, 9)


def test_a_reader_keeps_its_rows_while_others_come() -> None:
    store = HiddenStore(hidden_size=WIDTH)
    store.take("s", rows(0, 250))
    held = store.held("s", TAPS).rows(0, 250)["final_norm"]
    store.take("s", rows(250, 1500))
    store.take("s", rows(0, 1500, seed=1))
    assert np.array_equal(held.numpy(), rows(0, 250).taps["final_norm"])
    store.drop("s")
    store.take("s", rows(0, 250, seed=1))
    assert np.array_equal(held.numpy(), rows(0, 250).taps["final_norm"])


def test_sessions_and_taps_do_not_meet() -> None:
    store = HiddenStore(hidden_size=WIDTH)
    store.take("a", rows(0, 9, seed=1))
    store.take("b", rows(0, 5, seed=2))
    store.take("b", rows(0, 9, taps=("layer:1",), seed=2))
    assert read(store, "a", 0, 9) == rows(0, 9, seed=1)
    assert read(store, "b", 0, 5) == rows(0, 5, seed=2)
    # One source's lag is not another's.
    assert read(store, "b", 0, 9, ("layer:1",)) == rows(0, 9, taps=("layer:1",), seed=2)
    store.drop("a")
    store.drop("a")
    with pytest.raises(FailedPrecondition):
        store.held("a", TAPS)
    assert read(store, "b", 0, 5) == rows(0, 5, seed=2)


def test_the_bytes_are_bounded_and_the_session_fed_longest_ago_goes_first() -> None:
    one = 2 * 256 * WIDTH * 4
    store = HiddenStore(hidden_size=WIDTH, most_bytes=2 * one)
    for name in ("a", "b"):
        store.take(name, rows(0, 9))
    store.take("a", rows(9, 10))
    store.take("c", rows(0, 9))
    assert store.bytes_held <= 2 * one
    assert read(store, "a", 0, 10) == rows(0, 10)
    with pytest.raises(FailedPrecondition):
        store.held("b", TAPS)
    with pytest.raises(ResourceExhausted):
        store.take("c", rows(0, 600))
    assert read(store, "c", 0, 9) == rows(0, 9)


def test_what_came_so_far_never_passes_the_prefix() -> None:
    store = HiddenStore(hidden_size=WIDTH)
    view = store.of(TAPS)
    request = Rounds(session_manifest([PromptLookup().describe()], vocab_size=50)).request("reader", np.arange(9))
    session = request.manifest.session_id
    with pytest.raises(FailedPrecondition) as refused:
        view.so_far(request)
    assert refused.value.field == HIDDEN_BASE
    store.take(session, rows(0, 5))
    store.take(session, rows(0, 3, taps=("final_norm",)))
    states, count = view.so_far(request)
    assert count == 5
    assert HiddenRows(0, {tap: r.numpy() for tap, r in states.rows(0, count).items()}) == rows(0, 5)
    store.take(session, rows(5, 30))
    assert view.so_far(request)[1] == 8


def test_rows_of_another_width_are_refused() -> None:
    store = HiddenStore(hidden_size=WIDTH)
    with pytest.raises(InvalidArgument, match="3 wide"):
        store.take("s", rows(0, 4, width=3))


class _Reader:
    """A source that reads rows up to its prefix and offers nothing."""

    runs_inline = True

    def __init__(self, store: HiddenStore) -> None:
        self.inner = PromptLookup()
        self.rows = store.of(TAPS)
        self.seen: list[HiddenRows] = []

    def describe(self) -> SourceDescription:
        return replace(self.inner.describe(), name="reader", taps=TAPS)

    def open(self, session_id: str, manifest: object) -> None: ...

    def close(self, session_id: str) -> None: ...

    def propose(self, request: ProposeRequest) -> Proposal:
        if request.node_budget:
            stop = len(request.prefix) - 1
            states = self.rows.states(request).rows(0, stop)
            self.seen.append(HiddenRows(0, {tap: r.numpy().copy() for tap, r in states.items()}))
        return replace(self.inner.propose(replace(request, node_budget=0)), source="reader")


def test_a_host_takes_rows_with_the_call_and_forgets_them_with_the_session() -> None:
    store = HiddenStore(hidden_size=WIDTH)
    reader = _Reader(store)
    host = SourceHost([PromptLookup(), reader], hidden=store)
    rounds = Rounds(session_manifest(host.describe(), vocab_size=50))
    assert [source.taps for source in host.describe()] == [(), TAPS]
    host.open("s", rounds.manifest)
    prefix = np.arange(11) % 7
    request = rounds.request("reader", prefix)
    with pytest.raises(FailedPrecondition) as refused:
        host.propose(request)
    assert refused.value.field == HIDDEN_BASE
    host.propose(replace(request, hidden=rows(0, 6), node_budget=0))
    host.propose(replace(request, hidden=rows(6, 10)))
    assert reader.seen == [rows(0, 10)]
    for wrong, field in (
        (replace(request, hidden=rows(10, 11)), "hidden"),
        (replace(request, hidden=rows(10, 10, taps=("layer:1",))), "hidden.taps"),
        (replace(request, source="prompt_lookup", hidden=rows(10, 10)), "hidden.taps"),
    ):
        with pytest.raises(InvalidArgument) as named:
            host.propose(wrong)
        assert named.value.field == field
    host.close("s")
    assert store.bytes_held == 0
