"""Lost replies and lost replicas: no token is lost, none comes twice."""

from dataclasses import replace

import pytest

from contracts.errors import FailedPrecondition, Internal, NotFound, ResourceExhausted, Unavailable
from contracts.sampling import SamplingPolicy
from orchestrator.generate import Orchestrator
from orchestrator.request import GenerateRequest
from orchestrator.settings import OrchestratorSettings
from tests.helpers.fakes import (
    FakeProposer,
    FakeTokenizer,
    FakeVerifier,
    babble,
    collect,
    drop_session,
    lose_reply,
    oracle,
)

SETTINGS = OrchestratorSettings(propose_deadline_ms=60_000.0, retry_delays_ms=(0.0,))
REQUESTS = {
    "greedy": GenerateRequest(text="abab", policy=SamplingPolicy(temperature=0.0, max_tokens=30), max_depth=3),
    "sampled": GenerateRequest(text="abab", policy=SamplingPolicy(temperature=1.0, seed=3, max_tokens=30), max_depth=3),
}


def service(verifier: FakeVerifier, proposer: FakeProposer | None = None) -> Orchestrator:
    source = proposer or FakeProposer({"prompt_lookup": oracle(babble)})
    return Orchestrator(verifier, [source], [], FakeTokenizer(), SETTINGS)


@pytest.fixture(params=REQUESTS)
def request_(request) -> GenerateRequest:
    return REQUESTS[request.param]


async def undisturbed(request: GenerateRequest) -> list[int]:
    chunks, _ = await collect(service(FakeVerifier()).generate(request))
    return [token for chunk in chunks for token in chunk.token_ids]


def tokens_of(chunks) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


async def test_a_reply_lost_after_the_commit_is_settled_by_its_receipt(request_):
    verifier = FakeVerifier()
    verifier.after.extend([None, lose_reply])
    chunks, final = await collect(service(verifier).generate(request_))
    assert tokens_of(chunks) == await undisturbed(request_)
    assert verifier.calls.count("get_receipt") == 1
    assert len({(r.manifest.round_id, r.payload_digest) for r in verifier.verified}) == len(verifier.verified)
    assert final.certificate.sessions == 1


async def test_a_call_lost_before_the_commit_is_repeated_as_it_was(request_):
    verifier = FakeVerifier()
    verifier.before.extend([None, lose_reply, lose_reply])
    chunks, _ = await collect(service(verifier).generate(request_))
    assert tokens_of(chunks) == await undisturbed(request_)
    assert verifier.verified[1] is verifier.verified[2] is verifier.verified[3]


async def test_a_replica_that_forgot_the_session_gets_the_published_tokens_as_prompt(request_):
    verifier = FakeVerifier()
    verifier.before.extend([None, None, drop_session])
    chunks, final = await collect(service(verifier).generate(request_))
    assert tokens_of(chunks) == await undisturbed(request_)
    first, second = verifier.opened
    published = len(chunks[0].token_ids) + len(chunks[1].token_ids)
    assert second.published == published
    assert second.prompt.tolist() == first.prompt.tolist() + tokens_of(chunks)[:published]
    assert final.usage.completion == 30
    assert final.certificate.sessions == 2
    assert final.certificate.parents == ()
    assert final.certificate.ledger.components_us["other"] > 0.0
    assert verifier.sessions == {}


async def test_tokens_committed_on_a_replica_that_died_before_its_reply_are_decoded_again(request_):
    async def die(verifier, request):
        verifier.sessions.clear()
        raise Unavailable("verifier", "killed")

    verifier = FakeVerifier()
    verifier.after.extend([None, die])
    chunks, _ = await collect(service(verifier).generate(request_))
    assert tokens_of(chunks) == await undisturbed(request_)
    assert len(verifier.opened) == 2


async def test_failover_to_other_hardware_seals_a_child_manifest(request_):
    async def move(verifier, request):
        verifier.sessions.clear()
        verifier.target = replace(verifier.target, hardware="elsewhere")

    verifier = FakeVerifier()
    verifier.before.extend([None, move])
    proposer = FakeProposer({"prompt_lookup": oracle(babble)})
    chunks, final = await collect(service(verifier, proposer).generate(request_))
    assert tokens_of(chunks) == await undisturbed(request_)
    first, second = (opened.manifest for opened in verifier.opened)
    assert second.parent == first.hash
    assert final.certificate.parents == (first.hash,)
    assert final.certificate.manifest_hash == second.hash
    assert proposer.sessions == {}
    assert final.certificate.failures == {}


@pytest.mark.parametrize("field", ["checkpoint_digest", "tokenizer_digest", "dtype"])
async def test_failover_to_another_law_is_refused(field):
    async def move(verifier, request):
        verifier.sessions.clear()
        verifier.target = replace(verifier.target, **{field: "another"})

    verifier = FakeVerifier()
    verifier.before.extend([None, move])
    with pytest.raises(FailedPrecondition) as caught:
        await collect(service(verifier).generate(REQUESTS["greedy"]))
    assert caught.value.field == f"target.{field}"
    assert verifier.sessions == {}


async def test_a_verifier_that_stays_away_ends_in_a_typed_error_after_bounded_attempts():
    async def go_down(verifier, request):
        verifier.down = True
        raise Unavailable("verifier", "gone")

    verifier = FakeVerifier()
    verifier.before.extend([None, go_down])
    with pytest.raises(Unavailable):
        await collect(service(verifier).generate(REQUESTS["greedy"]))
    assert verifier.calls.count("verify") == 1 + SETTINGS.verify_attempts
    assert verifier.calls.count("open_session") == 1 + SETTINGS.reopen_attempts


async def test_a_session_that_is_lost_again_and_again_ends_in_a_typed_error():
    verifier = FakeVerifier()
    verifier.before.extend([drop_session] * 20)
    with pytest.raises(Unavailable):
        await collect(service(verifier).generate(REQUESTS["greedy"]))
    assert verifier.calls.count("open_session") == 1 + SETTINGS.reopen_attempts


async def test_a_lost_reply_to_the_opening_is_repeated():
    verifier = FakeVerifier()
    verifier.open_errors.extend([Unavailable("verifier", "lost"), NotFound("session_id", "lapsed in prefill")])
    chunks, _ = await collect(service(verifier).generate(REQUESTS["greedy"]))
    assert tokens_of(chunks) == await undisturbed(REQUESTS["greedy"])


async def test_a_full_queue_is_waited_out(request_):
    async def refuse(verifier, request):
        raise ResourceExhausted("queue", "full", retry_after_ms=1)

    verifier = FakeVerifier()
    verifier.before.extend([None, *[refuse] * 5])
    chunks, final = await collect(service(verifier).generate(request_))
    assert tokens_of(chunks) == await undisturbed(request_)
    assert final.certificate.sessions == 1
    assert "get_receipt" not in verifier.calls


async def _drop_and_be_full(verifier, request):
    verifier.open_errors.extend([ResourceExhausted("queue", "full", retry_after_ms=1)] * 6)
    await drop_session(verifier, request)


async def test_a_request_whose_replica_died_waits_for_room_at_the_other(request_):
    verifier = FakeVerifier()
    verifier.before.extend([None, _drop_and_be_full])
    chunks, final = await collect(service(verifier).generate(request_))
    assert tokens_of(chunks) == await undisturbed(request_)
    assert final.certificate.sessions == 2
    assert not verifier.open_errors


async def test_a_request_waits_for_room_elsewhere_no_longer_than_its_deadline():
    async def full_for_good(verifier, request):
        verifier.open_errors.extend([ResourceExhausted("queue", "full", retry_after_ms=60_000)])
        await drop_session(verifier, request)

    verifier = FakeVerifier()
    verifier.before.extend([None, full_for_good])
    chunks, final = await collect(service(verifier).generate(replace(REQUESTS["greedy"], deadline_ms=2_000)))
    assert final.finish == "deadline"
    assert tokens_of(chunks) == (await undisturbed(REQUESTS["greedy"]))[: final.usage.completion]
    assert verifier.sessions == {}


async def test_a_receipt_of_another_payload_is_never_published():
    class Confused(FakeVerifier):
        async def verify(self, request):
            return replace(await super().verify(request), payload_digest="0" * 64)

    with pytest.raises(Internal, match="receipt"):
        await collect(service(Confused()).generate(REQUESTS["greedy"]))
