"""What happens while the target runs, and what does not have to wait for a turn of the event loop."""

import asyncio

import pytest

from contracts.errors import Unavailable
from orchestrator.budget.base import FixedBudget
from orchestrator.events import Chunk
from tests.helpers.fakes import FakeProposer, FakeVerifier, collect, wait_for
from tests.helpers.generation import ask, orchestrator, tokens_of


class AtOnce(FakeProposer):
    """A proposer that answers without waiting, and notes whether the loop turned between question and answer."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = 0
        self.turned: list[int] = []

    def answers_at_once(self, source):
        return source == "prompt_lookup"

    async def propose(self, request):
        asyncio.get_running_loop().call_soon(self._turn)
        self.turned.append(self.turns)
        return await super().propose(request)

    def _turn(self):
        self.turns += 1


class Listening(FakeVerifier):
    """Notes how many turns the loop had taken, by the proposer's count, when each round's question came."""

    def __init__(self, proposer):
        super().__init__()
        self.proposer = proposer
        self.turns: list[int] = []

    async def verify(self, request):
        self.turns.append(self.proposer.turns)
        return await super().verify(request)


async def test_a_source_that_answers_at_once_takes_no_turn_of_the_loop_between_question_and_pass():
    proposer = AtOnce()
    verifier = Listening(proposer)
    chunks, _ = await collect(orchestrator(verifier, proposers=[proposer]).generate(ask(sources=("prompt_lookup",))))
    assert len(chunks) > 3
    # In the first round the session may still be opening at the proposer.
    assert verifier.turns[1:] == proposer.turned[1:]


async def test_the_question_to_a_source_that_is_waited_for_leaves_before_what_answers_at_once():
    order = []

    class Noting(AtOnce):
        async def propose(self, request):
            order.append(request.source)
            return await super().propose(request)

    class Waiting(FakeProposer):
        async def propose(self, request):
            order.append(request.source)
            await asyncio.sleep(0)
            return await super().propose(request)

    waited_for = Waiting({"draft": lambda request: [1, 2]})
    service = orchestrator(FakeVerifier(), proposers=[Noting(), waited_for])
    chunks, final = await collect(service.generate(ask(sources=("prompt_lookup", "draft"), budget="fixed")))
    assert final.certificate.failures == {}
    assert len(chunks) > 3
    # In the first round the sessions may still be opening.
    assert order[2:] == ["draft", "prompt_lookup"] * (len(order) // 2 - 1)


async def test_sources_that_answer_at_once_and_others_are_gathered_in_plan_order():
    at_once, other = AtOnce(), FakeProposer({"draft": lambda request: [1, 2]})
    service = orchestrator(FakeVerifier(), proposers=[at_once, other])
    for order in (("prompt_lookup", "draft"), ("draft", "prompt_lookup")):
        _, final = await collect(service.generate(ask(sources=order)))
        assert final.certificate.failures == {}
        assert set(final.certificate.ledger.proposed_by) == set(order)


async def test_a_chunk_is_handed_out_when_the_next_round_is_on_its_way():
    verifier, blocked = FakeVerifier(), asyncio.Event()
    verifier.before.extend([None, wait_for(blocked)])
    events = orchestrator(verifier).generate(ask(sources=()))
    first = await anext(events)
    assert len(verifier.verified) == 2, "the chunk came before the next round was sent, or after it was over"
    blocked.set()
    assert len(tokens_of([first])) == 1
    assert [event async for event in events]


async def test_a_round_is_learned_from_while_the_next_ones_target_runs(monkeypatch: pytest.MonkeyPatch):
    learned, verifier, blocked = [], FakeVerifier(), asyncio.Event()

    class Noting(FixedBudget):
        def learn(self, choice, receipt, ledger, waits_us):
            learned.append(receipt.round_id)

    monkeypatch.setattr("orchestrator.run.FixedBudget", Noting)
    verifier.before.extend([None, wait_for(blocked)])
    events = orchestrator(verifier).generate(ask(sources=(), budget="fixed"))
    await anext(events)
    assert learned == [0], "the first round was learned from after the second one's answer"
    blocked.set()
    rounds = [event.round for event in [event async for event in events] if isinstance(event, Chunk)]
    # The others are over before there is time to: they are learned from all the same, in their order.
    assert learned == list(range(len(rounds) + 1))


async def test_a_source_that_is_slow_in_the_next_round_holds_no_chunk_back():
    proposer, forever = FakeProposer(), asyncio.Event()
    proposer.script.extend([None, forever])
    events = orchestrator(FakeVerifier(), proposers=[proposer]).generate(ask(sources=("prompt_lookup",)))
    first = await anext(events)
    assert first.token_ids
    await events.aclose()


async def test_a_failing_round_fails_after_the_chunk_before_it_was_handed_out():
    verifier = FakeVerifier()

    async def lose(fake, request):
        fake.sessions.clear()
        fake.open_errors.extend([Unavailable("verifier", "gone")] * 50)

    verifier.before.extend([None, lose])
    events = orchestrator(verifier).generate(ask(sources=()))
    first = await anext(events)
    assert first.token_ids
    with pytest.raises(Unavailable, match="verifier"):
        await anext(events)


async def test_closing_takes_back_the_round_under_way():
    verifier, reached = FakeVerifier(), asyncio.Event()
    taken_back = []

    async def hang(fake, request):
        reached.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            taken_back.append(request.manifest.round_id)
            raise

    verifier.before.extend([None, hang])
    events = orchestrator(verifier).generate(ask(sources=()))
    await anext(events)
    await reached.wait()
    await events.aclose()
    assert taken_back == [1]
    assert verifier.sessions == {}


async def test_chunks_that_were_not_taken_in_time_come_in_order_before_the_error_of_a_later_round():
    verifier = FakeVerifier()

    async def lose(fake, request):
        fake.sessions.clear()
        fake.open_errors.extend([Unavailable("verifier", "gone")] * 50)

    verifier.before.extend([None, None, None, lose])
    events = orchestrator(verifier).generate(ask(sources=()))
    tokens = []
    for _ in range(3):
        tokens += (await anext(events)).token_ids
        await asyncio.sleep(0.03)
    with pytest.raises(Unavailable, match="verifier"):
        await anext(events)
    plain, _ = await collect(orchestrator(FakeVerifier()).generate(ask(sources=())))
    assert tokens == tokens_of(plain)[:3]
