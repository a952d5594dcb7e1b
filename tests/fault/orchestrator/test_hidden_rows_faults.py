"""Hidden rows on their way from verifier to proposers: carried once, sent again where they went astray, and never the text's
concern."""

import asyncio
from dataclasses import replace

import pytest

from contracts.errors import Unavailable
from contracts.hidden import HiddenRows
from orchestrator import hidden_feed
from orchestrator.hidden_feed import HiddenFeed
from orchestrator.settings import OrchestratorSettings
from tests.helpers.fakes import (
    FakeVerifier,
    TappedProposer,
    babble,
    collect,
    drop_session,
    fake_rows,
    lookup,
    lose_reply,
    oracle,
)
from tests.helpers.generation import GREEDY, PROMPT, SAMPLED, ask, orchestrator, tokens_of

TAPS = {"head": ("final_norm", "layer:1"), "other": ("layer:1",), "prompt_lookup": ()}


def proposer(**prompt_rows: int) -> TappedProposer:
    """`head` is right but for its last token, so that its offers are partly rejected."""

    def mostly(request) -> list[int]:
        tokens = oracle(babble)(replace(request, node_budget=3))
        return [*tokens[:-1], (tokens[-1] + 1) % 120] if tokens else []

    return TappedProposer({"head": mostly, "other": oracle(babble), "prompt_lookup": lookup}, TAPS, prompt_rows)


async def plain(policy=GREEDY) -> list[int]:
    chunks, _ = await collect(orchestrator(FakeVerifier()).generate(ask(policy=policy, sources=())))
    return tokens_of(chunks)


@pytest.mark.parametrize("policy", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("sources", [("head",), ("head", "other", "prompt_lookup")], ids=len)
async def test_rows_travel_once_and_the_prompt_is_exported_once(policy, sources) -> None:
    verifier, source = FakeVerifier(), proposer()
    verifier.export_at_once = 5
    chunks, final = await collect(
        orchestrator(verifier, proposers=[source]).generate(ask(policy=policy, sources=sources))
    )
    assert tokens_of(chunks) == await plain(policy)
    assert final.certificate.failures == {}
    assert final.usage.accepted
    # Several tapped sources share one export of the prompt, made in parts of five rows.
    assert verifier.calls.count("export_hidden") == -(-(len(PROMPT) - 1) // 5)
    for name in sources:
        carried = [request.hidden for request in source.asked if request.source == name]
        if not TAPS[name]:
            assert carried == [None] * len(carried)
            continue
        # The prompt's rows came ahead of the first round, which had none to bring.
        assert [rows is None for rows in carried] == [False, True, *[False] * (len(carried) - 2)]
        carried = [rows for rows in carried if rows is not None]
        assert [rows.start for rows in carried[1:]] == [rows.stop for rows in carried[:-1]]
        assert carried[0].start == 0


async def test_no_taps_cost_nothing() -> None:
    verifier, source = FakeVerifier(), proposer()
    await collect(orchestrator(verifier, proposers=[source]).generate(ask(sources=("prompt_lookup",))))
    assert "export_hidden" not in verifier.calls
    assert all(request.hidden is None for request in source.asked)
    assert all(
        receipt.hidden is None for session in verifier.sessions.values() for receipt in session.receipts.values()
    )


@pytest.mark.parametrize("policy", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
async def test_a_restarted_proposer_gets_all_rows_again_and_drafts_on(policy) -> None:
    verifier, source = FakeVerifier(), proposer()
    source.forgets.extend([False, False, True, False, False, False, True])
    chunks, final = await collect(
        orchestrator(verifier, proposers=[source]).generate(ask(policy=policy, sources=("head",)))
    )
    assert tokens_of(chunks) == await plain(policy)
    assert final.certificate.failures == {}
    starts = [request.hidden.start for request in source.asked if request.hidden is not None]
    assert starts.count(0) >= 3


@pytest.mark.parametrize("policy", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
async def test_a_source_that_reads_the_prompts_end_is_sent_that_only_also_after_a_restart_and_a_move(policy) -> None:
    verifier, source = FakeVerifier(), proposer(head=2, other=1000)
    verifier.before.extend([None, None, drop_session])
    source.forgets.extend([False] * 4 + [True])
    chunks, final = await collect(
        orchestrator(verifier, proposers=[source]).generate(ask(policy=policy, sources=("head", "other")))
    )
    assert tokens_of(chunks) == await plain(policy)
    assert final.certificate.failures == {}
    assert final.certificate.sessions == 2
    bases = {"head": len(PROMPT) - 3, "other": 0}
    for name, base in bases.items():
        carried = [request.hidden for request in source.asked if request.source == name and request.hidden is not None]
        assert {rows.base for rows in carried} == {base}
        assert min(rows.start for rows in carried) == base
        # At the start, after the restart and after the move.
        assert [rows.start for rows in carried].count(base) >= 2


async def test_a_proposer_that_dies_in_mid_call_is_fed_from_the_start_when_it_is_back() -> None:
    verifier, source = FakeVerifier(), proposer()
    source.script.extend([None, Unavailable("", "died"), None])
    source.forgets.extend([False, False, True])
    chunks, final = await collect(orchestrator(verifier, proposers=[source]).generate(ask(sources=("head",))))
    assert tokens_of(chunks) == await plain()
    assert set(final.certificate.failures) == {"head"}
    offered = [request.manifest.round_id for request in source.asked if request.hidden is not None]
    assert max(offered) > 2


async def test_an_export_that_fails_costs_its_source_the_round_only() -> None:
    verifier, source = FakeVerifier(), proposer()
    # Once ahead of the first round, where it costs nothing, and once in it.
    verifier.export_errors.extend([Unavailable("", "no export")] * 2)
    chunks, final = await collect(
        orchestrator(verifier, proposers=[source]).generate(ask(sources=("head", "prompt_lookup")))
    )
    assert tokens_of(chunks) == await plain()
    assert "no export" in final.certificate.failures["head"]
    assert final.certificate.ledger.proposed_by["head"] > 0
    assert "prompt_lookup" not in final.certificate.failures


@pytest.mark.parametrize("fault", [drop_session, lose_reply])
async def test_a_moved_session_exports_anew_and_a_lost_reply_loses_no_rows(fault) -> None:
    verifier, source = FakeVerifier(), proposer()
    verifier.before.extend([None, None, fault])
    verifier.after.extend([None, lose_reply])
    chunks, final = await collect(orchestrator(verifier, proposers=[source]).generate(ask(sources=("head", "other"))))
    assert tokens_of(chunks) == await plain()
    assert final.certificate.failures == {}
    assert final.certificate.sessions == (2 if fault is drop_session else 1)


async def test_a_late_source_finds_its_rows_carried() -> None:
    """The call that was given up had brought its rows; only what came since travels."""
    verifier, source = FakeVerifier(), proposer()
    settings = OrchestratorSettings(propose_deadline_ms=200.0)

    never = asyncio.Event()
    source.script.extend([None, never])
    chunks, final = await collect(
        orchestrator(verifier, proposers=[source], settings=settings).generate(ask(sources=("head",)))
    )
    assert tokens_of(chunks) == await plain()
    assert "late" in final.certificate.failures["head"]
    starts = [request.hidden.start for request in source.asked if request.hidden is not None]
    assert starts[0] == 0
    assert 0 not in starts[1:]
    assert len(starts) > 1


async def test_the_first_round_does_not_wait_for_ever_for_a_source_to_get_ready() -> None:
    verifier, source = FakeVerifier(), proposer()
    never = asyncio.Event()
    source.script.extend([never])
    settings = OrchestratorSettings(prepare_deadline_ms=1.0)
    chunks, final = await collect(
        orchestrator(verifier, proposers=[source], settings=settings).generate(ask(sources=("head",)))
    )
    assert tokens_of(chunks) == await plain()
    assert final.certificate.failures == {}
    assert final.usage.accepted


async def test_a_source_that_fails_to_get_ready_is_asked_all_the_same() -> None:
    verifier, source = FakeVerifier(), proposer()
    source.script.extend([Unavailable("", "busy")])
    chunks, final = await collect(orchestrator(verifier, proposers=[source]).generate(ask(sources=("head",))))
    assert tokens_of(chunks) == await plain()
    assert final.certificate.failures == {}
    assert [request.manifest.round_id for request in source.asked][:2] == [0, 0]


async def test_unknown_taps_are_refused_by_name() -> None:
    source = TappedProposer({"head": oracle(babble)}, {"head": ("layer:77",)})
    with pytest.raises(Exception, match="layer:77") as refused:
        await collect(orchestrator(FakeVerifier(), proposers=[source]).generate(ask(sources=("head",))))
    assert refused.value.field == "manifest.sources.taps"


async def test_large_rows_go_ahead_in_parts_that_fit_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    source = proposer()
    whole = HiddenRows.parts
    monkeypatch.setattr(HiddenRows, "parts", lambda rows: whole(rows, 4 * rows.row_bytes))
    chunks, final = await collect(orchestrator(FakeVerifier(), proposers=[source]).generate(ask(sources=("head",))))
    assert tokens_of(chunks) == await plain()
    assert final.certificate.failures == {}
    first = [request for request in source.asked if request.manifest.round_id == 0]
    assert [request.node_budget > 0 for request in first] == [False] * (len(first) - 1) + [True]
    assert len(first) == 1 + -(-(len(PROMPT) - 1) // 4)
    assert all(request.hidden.count <= 4 for request in first[:-1])


async def test_a_feed_remembers_a_bounded_tail_and_exports_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hidden_feed, "TAIL_ROWS", 6)
    tokens = list(range(40))

    asked: list[tuple[int, int]] = []

    class Exporting:
        async def export_hidden(self, session_id: str, start: int, stop: int) -> HiddenRows:
            asked.append((start, stop))
            return fake_rows(tokens, start, stop, TAPS["head"])

    feed = HiddenFeed(Exporting(), "s")
    for start in range(9, 30, 3):
        feed.follow(fake_rows(tokens, start, start + 3, TAPS["head"]))
    assert await feed.rows(25, 30, ("layer:1",)) == fake_rows(tokens, 25, 30, ("layer:1",))
    assert asked == []
    assert await feed.rows(4, 30, TAPS["head"]) == fake_rows(tokens, 4, 30, TAPS["head"])
    ((start, stop),) = asked
    assert start == 4
    assert 30 - stop >= 6
    feed.close()
