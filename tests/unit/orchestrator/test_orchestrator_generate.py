"""Generate over in-memory fakes: what a client sees."""

import asyncio

import pytest

from contracts.ledger import COMPONENTS
from contracts.manifest import sha256_hex
from contracts.receipt import FinishReason
from contracts.sampling import SamplingPolicy
from tests.helpers.fakes import (
    EOS,
    FakeProposer,
    FakeRetriever,
    FakeTokenizer,
    FakeVerifier,
    babble,
    collect,
    lookup,
    oracle,
)
from tests.helpers.generation import (
    GREEDY,
    PROMPT,
    SAMPLED,
    ask,
    corpus,
    drafted,
    orchestrator,
    reciter,
    text_of,
    tokens_of,
)


@pytest.mark.parametrize("policy", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("sources", [("prompt_lookup",), ("oracle",), ("retrieval",), ("prompt_lookup", "retrieval")])
async def test_the_text_is_the_same_with_and_without_sources(policy, sources):
    proposer = FakeProposer({"prompt_lookup": lookup, "oracle": oracle(babble)})
    retriever = FakeRetriever({"book": corpus()})
    generate = orchestrator(FakeVerifier(), proposers=[proposer], retrievers=[retriever]).generate
    plain, _ = await collect(generate(ask(policy=policy, sources=())))
    fast, final = await collect(generate(ask(policy=policy, sources=sources)))
    assert tokens_of(fast) == tokens_of(plain)
    assert text_of(fast) == text_of(plain) == FakeTokenizer().decode(tokens_of(plain))
    assert final.usage.proposed > 0


async def test_accepted_drafts_save_passes():
    verifier = FakeVerifier()
    _, final = await collect(drafted(verifier).generate(ask(sources=("oracle",), max_depth=9)))
    assert verifier.calls.count("verify") == 4
    assert final.certificate.ledger.tokens_per_pass == 10.0


@pytest.mark.parametrize(
    "fields", [{"sources": ()}, {"speculation": False}, {"node_budget": 0}], ids=["no sources", "off", "budget 0"]
)
async def test_speculation_off_asks_no_source_and_seals_none(fields):
    proposer = FakeProposer()
    chunks, final = await collect(orchestrator(FakeVerifier(), proposers=[proposer]).generate(ask(**fields)))
    assert "propose" not in proposer.calls
    assert "open_session" not in proposer.calls
    assert final.certificate.proposed_by == {}
    assert b'"sources":[]' in final.certificate.manifest
    assert all(len(chunk.token_ids) == 1 for chunk in chunks)


async def test_sources_with_nothing_to_offer_leave_plain_decoding():
    proposer = FakeProposer({"silent": lambda request: []})
    _, final = await collect(orchestrator(FakeVerifier(), proposers=[proposer]).generate(ask(sources=("silent",))))
    assert final.usage.completion == 40
    assert (final.usage.proposed, final.certificate.failures) == (0, {})


async def test_usage_and_certificate_count_what_was_published():
    verifier = FakeVerifier()
    chunks, final = await collect(drafted(verifier).generate(ask(sources=("oracle",), max_depth=5)))
    rounds = [chunk.round for chunk in chunks]
    assert final.usage.prompt == len(PROMPT)
    assert final.usage.completion == len(tokens_of(chunks)) == 40
    assert final.usage.proposed == sum(r.candidates for r in rounds)
    assert final.usage.accepted == sum(r.accepted for r in rounds)
    assert final.usage.completion == final.usage.accepted + len(rounds)
    assert final.certificate.proposed_by == {"oracle": final.usage.proposed}
    assert final.certificate.accepted_by == {"oracle": final.usage.accepted}
    assert final.certificate.rounds == len(rounds)
    assert final.certificate.ledger.speedup > 0.0


async def test_a_row_that_two_sources_offer_counts_for_both():
    verifier = FakeVerifier()
    proposer = FakeProposer({"one": oracle(verifier.logits), "two": oracle(verifier.logits)})
    request = ask(sources=("one", "two"), max_depth=4, node_budget=8)
    _, final = await collect(orchestrator(verifier, proposers=[proposer]).generate(request))
    assert final.certificate.accepted_by == {"one": final.usage.accepted, "two": final.usage.accepted}


async def test_the_certificate_carries_the_bytes_behind_its_hash():
    verifier = FakeVerifier()
    _, final = await collect(orchestrator(verifier).generate(ask()))
    assert sha256_hex(final.certificate.manifest) == final.certificate.manifest_hash
    assert verifier.opened[0].manifest.hash == final.certificate.manifest_hash
    assert {request.manifest.manifest_hash for request in verifier.verified} == {final.certificate.manifest_hash}


async def test_the_ledger_adds_up():
    proposer, retriever = FakeProposer(), FakeRetriever({"book": corpus()})
    generate = orchestrator(FakeVerifier(), proposers=[proposer], retrievers=[retriever]).generate
    chunks, final = await collect(generate(ask()))
    ledgers = [chunk.round.ledger for chunk in chunks]
    for ledger in ledgers:
        assert all(getattr(ledger, name) >= -1e-6 for name in COMPONENTS)
        assert ledger.verify == 4.0
        assert ledger.queue == 1.0
    assert final.certificate.ledger.total_us == pytest.approx(sum(ledger.total_us for ledger in ledgers))
    assert final.certificate.ledger.committed == final.usage.completion


async def test_text_ids_and_messages_all_prompt():
    verifier = FakeVerifier()
    generate = orchestrator(verifier).generate
    await collect(generate(ask(text="hi")))
    await collect(generate(ask(prompt_ids=(104, 105))))
    await collect(generate(ask(messages=({"role": "user", "content": "hi"},))))
    prompts = [opened.prompt.tolist() for opened in verifier.opened]
    assert prompts[0] == prompts[1] == [104, 105]
    assert prompts[2] == FakeTokenizer().encode_chat([{"role": "user", "content": "hi"}])


async def test_an_eos_is_counted_and_not_in_the_text():
    chunks, final = await collect(orchestrator(reciter("said all")).generate(ask()))
    assert (final.finish, final.stop_id, final.stop_string) == (FinishReason.STOP, EOS, None)
    assert text_of(chunks) == "said all"
    assert tokens_of(chunks)[-1] == EOS
    assert final.usage.completion == len("said all") + 1


async def test_a_stop_id_with_text_is_counted_and_not_in_the_text():
    policy = SamplingPolicy(temperature=0.0, max_tokens=40, stop_ids=(ord("."),))
    chunks, final = await collect(drafted(reciter("one. two")).generate(ask(policy=policy, sources=("oracle",))))
    assert (final.finish, final.stop_id) == (FinishReason.STOP, ord("."))
    assert text_of(chunks) == "one"
    assert final.usage.completion == 4


@pytest.mark.parametrize("depth", range(1, 9))
async def test_nothing_past_a_stop_string_is_published_counted_or_given_a_logprob(depth):
    policy = SamplingPolicy(temperature=0.0, max_tokens=40, stop_strings=("STOP", "zz"), logprobs=0)
    verifier = reciter("well then STOP and more")
    chunks, final = await collect(drafted(verifier).generate(ask(policy=policy, sources=("oracle",), max_depth=depth)))
    assert (final.finish, final.stop_string, final.stop_id) == (FinishReason.STOP, "STOP", None)
    assert text_of(chunks) == "well then "
    assert bytes(tokens_of(chunks)) == b"well then STOP"
    assert sum(len(chunk.logprobs) for chunk in chunks) == final.usage.completion == 14
    assert final.certificate.ledger.committed == 14
    assert final.usage.accepted <= 14
    assert all("S" not in chunk.text for chunk in chunks)


async def test_a_stop_string_at_the_length_limit_is_a_stop():
    policy = SamplingPolicy(temperature=0.0, max_tokens=8, stop_strings=("gh",))
    chunks, final = await collect(orchestrator(reciter("abcdefghij")).generate(ask(policy=policy)))
    assert (final.finish, text_of(chunks)) == (FinishReason.STOP, "abcdef")


async def test_text_held_for_a_stop_that_never_comes_is_published_at_the_end():
    policy = SamplingPolicy(temperature=0.0, max_tokens=40, stop_strings=("the end",))
    chunks, final = await collect(orchestrator(reciter("this is the en")).generate(ask(policy=policy)))
    assert (final.finish, text_of(chunks)) == (FinishReason.STOP, "this is the en")
    assert final.stop_string is None


@pytest.mark.parametrize("depth", [1, 3, 7])
async def test_streamed_text_never_splits_a_character(depth):
    text = "naïve 日本語 🧑‍🚀 Ωμέγα"
    request = ask(sources=("oracle",), max_depth=depth, policy=SamplingPolicy(temperature=0.0, max_tokens=80))
    chunks, _ = await collect(drafted(reciter(text)).generate(request))
    assert text_of(chunks) == text
    assert all("\ufffd" not in chunk.text for chunk in chunks)


async def test_half_a_character_at_the_length_limit_shows_as_the_whole_decoding_shows_it():
    policy = SamplingPolicy(temperature=0.0, max_tokens=3)
    chunks, final = await collect(orchestrator(reciter("a日")).generate(ask(policy=policy)))
    assert (final.finish, text_of(chunks)) == (FinishReason.LENGTH, "a\ufffd")


async def test_no_round_drafts_past_the_last_token_that_may_be_published():
    proposer = FakeProposer({"oracle": oracle(babble)})
    request = ask(sources=("oracle",), max_depth=6, policy=SamplingPolicy(temperature=0.0, max_tokens=9))
    chunks, _ = await collect(orchestrator(FakeVerifier(), proposers=[proposer]).generate(request))
    assert [asked.max_depth for asked in proposer.asked] == [6, 1]
    assert [len(chunk.token_ids) for chunk in chunks] == [7, 2]


async def test_generation_ends_at_the_context_by_length():
    verifier = FakeVerifier(context_length=30)
    _, final = await collect(drafted(verifier).generate(ask(sources=("oracle",))))
    assert final.finish is FinishReason.LENGTH
    assert final.usage.prompt + final.usage.completion == 30


async def test_requests_side_by_side_do_not_mix():
    verifier = FakeVerifier()
    service = orchestrator(verifier)
    alone = [tokens_of((await collect(service.generate(ask(text=text))))[0]) for text in ("xy", "pq", "ab")]
    together = await asyncio.gather(*(collect(service.generate(ask(text=text))) for text in ("xy", "pq", "ab")))
    assert [tokens_of(chunks) for chunks, _ in together] == alone
    assert verifier.sessions == {}


async def test_the_cache_scope_parts_tenants_and_salts():
    verifier = FakeVerifier()
    service = orchestrator(verifier)
    for tenant, salt in (("", ""), ("a", ""), ("", "a"), ("a", "b"), ("a", "")):
        await collect(service.generate(ask(tenant=tenant, cache_salt=salt, sources=())))
    scopes = [request.cache_scope for request in verifier.opened]
    assert len(set(scopes)) == 4
    assert scopes[1] == scopes[4]
