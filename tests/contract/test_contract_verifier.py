"""The verifier port's contract, on the fake, in process and over gRPC with an engine process of its own."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from contracts.draft_law import DraftLaw
from contracts.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound
from contracts.graph import CandidateGraph, Draw
from contracts.hidden import HiddenRows, joined
from contracts.ports import OpenSession, VerifierPort
from contracts.receipt import FinishReason
from services.clients.verifier import VerifierClient
from services.settings import VerifierSettings, load
from tests.contract.processes import ServiceProcess
from tests.contract.scenario import GREEDY, LOOKUP, Driver, graph_of, manifest_of
from tests.helpers.fakes import FakeVerifier

PROMPT = [72, 101, 108, 108, 111]


@pytest.fixture(params=["fake", "local", "grpc", "link"])
async def port(request: pytest.FixtureRequest, tiny_checkpoint_directory: Path) -> AsyncIterator[VerifierPort]:
    if request.param == "fake":
        yield FakeVerifier()
    elif request.param == "local":
        from services.verifier_service.build import build_worker
        from verifier.local import LocalVerifier

        settings = load(
            VerifierSettings, model=str(tiny_checkpoint_directory), dtype="float32", threads=1, kv_tokens=4096
        )
        async with LocalVerifier(build_worker(settings)) as local:
            yield local
    else:
        process: ServiceProcess = request.getfixturevalue("verifier_process")
        client = VerifierClient(process.endpoint, link=process.link if request.param == "link" else None)
        yield client
        await client.close()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A session id that no other test uses: the process outlives them."""
    return request.node.name


async def test_describe(port: VerifierPort) -> None:
    described = await port.describe()
    assert {"greedy", "membership"} <= {capability.name for capability in described.capabilities}
    assert described.max_rows > 0
    assert described.eos_ids
    assert (await port.describe()).target == described.target


async def test_open_is_idempotent(port: VerifierPort, name: str) -> None:
    target = (await port.describe()).target
    request = OpenSession(name, manifest_of(target), GREEDY, np.array(PROMPT))
    opened = await port.open_session(request)
    again = await port.open_session(request)
    assert (opened.session_id, opened.generation, opened.prefix_len) == (name, 0, len(PROMPT))
    assert (again.generation, again.prefix_len) == (0, len(PROMPT))
    other = replace(request, manifest=replace(request.manifest, max_depth=3))
    with pytest.raises(AlreadyExists) as refused:
        await port.open_session(other)
    assert refused.value.field == "session_id"
    await port.close_session(name)


async def test_another_target_is_refused(port: VerifierPort, name: str) -> None:
    target = replace((await port.describe()).target, checkpoint_digest="f" * 64)
    with pytest.raises(FailedPrecondition) as refused:
        await port.open_session(OpenSession(name, manifest_of(target), GREEDY, np.array(PROMPT)))
    assert refused.value.field.startswith("manifest.target")


async def test_rounds_publish_and_repeat(port: VerifierPort, name: str) -> None:
    driver = await Driver.open(port, name, PROMPT)
    request = driver.request()
    receipt = await port.verify(request)
    assert len(receipt.tokens) == 1
    assert (receipt.generation, receipt.prefix_len) == (1, len(PROMPT) + 1)
    assert (receipt.session_id, receipt.round_id) == (name, 0)
    assert (receipt.round_hash, receipt.payload_digest) == (request.manifest.hash, request.payload_digest)
    assert await port.verify(request) == receipt
    assert await port.get_receipt(name, 0) == receipt
    driver.follow(receipt)
    assert (await driver.round()).generation == 2
    await port.close_session(name)


async def test_what_the_target_says_is_accepted(port: VerifierPort, name: str) -> None:
    plain = await Driver.open(port, f"{name}-plain", PROMPT)
    tokens = [(await plain.round()).tokens[0] for _ in range(4)]
    wrong = (tokens[0] + 1) % 200 + 3
    driver = await Driver.open(port, name, PROMPT)
    graph = graph_of([wrong, tokens[1]], tokens[:3])
    receipt = await driver.round(graph)
    assert list(receipt.tokens) == tokens
    assert [int(graph.token_ids[row]) for row in receipt.accepted_rows] == tokens[:3]
    for session_id in (name, f"{name}-plain"):
        await port.close_session(session_id)


async def test_wrong_coordinates_are_refused_and_the_session_goes_on(port: VerifierPort, name: str) -> None:
    driver = await Driver.open(port, name, PROMPT)
    await driver.round()
    for changes in ({"target_generation": 0}, {"manifest_hash": "f" * 64}, {"frontier": "f" * 64}):
        with pytest.raises(FailedPrecondition) as refused:
            await port.verify(driver.request(**changes))
        assert refused.value.field == f"manifest.{next(iter(changes))}"
    assert (await driver.round()).generation == 2
    await port.close_session(name)


async def test_a_round_id_names_one_payload(port: VerifierPort, name: str) -> None:
    driver = await Driver.open(port, name, PROMPT)
    await port.verify(driver.request())
    with pytest.raises(AlreadyExists):
        await port.verify(driver.request(graph_of([9, 8])))
    await port.close_session(name)


def _with_law(token_ids: list[int], weights: list[int]) -> CandidateGraph:
    law = DraftLaw(np.array(token_ids, dtype=np.int64), np.array(weights, dtype=np.int64))
    return CandidateGraph(np.array([5]), np.array([-1]), (("a",),), (Draw(-1, 0, "a", 0),), (law,))


MALFORMED = {
    "a forward parent": CandidateGraph(
        np.array([5, 6]), np.array([1, -1]), (("a",), ("a",)), (Draw(1, 0, "a"), Draw(-1, 1, "a"))
    ),
    "a cycle": CandidateGraph(np.array([5]), np.array([0]), (("a",),), (Draw(0, 0, "a"),)),
    "a doubled prefix": CandidateGraph(
        np.array([5, 5]), np.array([-1, -1]), (("a",), ("a",)), (Draw(-1, 0, "a"), Draw(-1, 1, "a"))
    ),
    "a token past the vocabulary": CandidateGraph(np.array([70_000]), np.array([-1]), (("a",),), (Draw(-1, 0, "a"),)),
    "a negative token": CandidateGraph(np.array([-3]), np.array([-1]), (("a",),), (Draw(-1, 0, "a"),)),
    "a row nobody drew": CandidateGraph(np.array([5]), np.array([-1]), (("a",),), ()),
    "a law that is not there": CandidateGraph(np.array([5]), np.array([-1]), (("a",),), (Draw(-1, 0, "a", 3),)),
    "a law that sums to less than 1": _with_law([5, 6], [2**31, 2**31 - 1]),
    "a law that sums to more than 1": _with_law([5, 6], [2**31, 2**31 + 1]),
    "a probability above 1": _with_law([5], [2**33]),
    "a law with a token twice": _with_law([5, 5], [2**31, 2**31]),
    "a law over a token past the vocabulary": _with_law([5, 70_000], [2**31, 2**31]),
    "a law of nothing": _with_law([], []),
}


@pytest.mark.parametrize("what", MALFORMED)
async def test_malformed_graphs_are_refused_by_name(port: VerifierPort, name: str, what: str) -> None:
    driver = await Driver.open(port, name, PROMPT)
    with pytest.raises(InvalidArgument) as refused:
        await port.verify(driver.request(MALFORMED[what]))
    assert refused.value.field.startswith("graph.")
    assert (await driver.round()).generation == 1
    await port.close_session(name)


async def test_a_payload_must_be_what_its_digest_says(port: VerifierPort, name: str) -> None:
    driver = await Driver.open(port, name, PROMPT)
    with pytest.raises(InvalidArgument) as refused:
        await port.verify(replace(driver.request(), payload_digest="f" * 64))
    assert refused.value.field == "payload_digest"
    await port.close_session(name)


async def test_the_limit_ends_it(port: VerifierPort, name: str) -> None:
    policy = replace(GREEDY, max_tokens=2, ignore_eos=True)
    driver = await Driver.open(port, name, PROMPT, policy)
    assert (await driver.round()).finish is FinishReason.NONE
    assert (await driver.round()).finish is FinishReason.LENGTH
    await port.close_session(name)


async def test_unknown_sessions_and_receipts(port: VerifierPort, name: str) -> None:
    driver = await Driver.open(port, name, PROMPT)
    with pytest.raises(NotFound):
        await port.get_receipt(name, 7)
    await port.close_session(name)
    await port.close_session(name)
    with pytest.raises(NotFound):
        await port.verify(driver.request())
    with pytest.raises(NotFound):
        await port.get_receipt(name, 0)


async def test_a_call_given_up_settles_by_its_receipt(port: VerifierPort, name: str) -> None:
    driver = await Driver.open(port, name, PROMPT)
    request = driver.request()
    calling = asyncio.ensure_future(port.verify(request))
    await asyncio.sleep(0)
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)
    # It may or may not have run; a repeat gives the one outcome either way.
    receipt = await port.verify(request)
    assert await port.get_receipt(name, 0) == receipt
    driver.follow(receipt)
    assert (await driver.round()).generation == 2
    await port.close_session(name)


async def test_sessions_side_by_side_do_not_meet(port: VerifierPort, name: str) -> None:
    prompts = [[70 + i, *PROMPT] for i in range(4)]
    alone = []
    for number, prompt in enumerate(prompts):
        driver = await Driver.open(port, f"{name}-alone{number}", prompt)
        alone.append([(await driver.round()).tokens for _ in range(3)])
    drivers = [await Driver.open(port, f"{name}-{number}", prompt) for number, prompt in enumerate(prompts)]

    async def run(driver: Driver) -> list[tuple[int, ...]]:
        return [(await driver.round()).tokens for _ in range(3)]

    assert await asyncio.gather(*(run(driver) for driver in drivers)) == alone
    for number in range(4):
        await port.close_session(f"{name}-alone{number}")
        await port.close_session(f"{name}-{number}")


HEADS = (replace(LOOKUP, name="head", taps=("final_norm", "layer:1")), replace(LOOKUP, name="old", taps=("layer:0",)))
TAPS = ["final_norm", "layer:0", "layer:1"]


async def export(port: VerifierPort, session_id: str, start: int, stop: int) -> HiddenRows:
    """The whole range, in as many calls as it takes."""
    parts = [await port.export_hidden(session_id, start, stop)]
    while parts[-1].stop < stop:
        parts.append(await port.export_hidden(session_id, parts[-1].stop, stop))
    return joined(parts)


async def test_hidden_rows_come_with_receipts_and_again_on_demand(port: VerifierPort, name: str) -> None:
    plain = await Driver.open(port, f"{name}-plain", PROMPT)
    tokens = [(await plain.round()).tokens[0] for _ in range(5)]
    driver = await Driver.open(port, name, PROMPT, sources=HEADS)
    first = await export(port, name, 0, len(PROMPT) - 1)
    assert (first.start, first.count, sorted(first.taps)) == (0, len(PROMPT) - 1, TAPS)
    wrong = (tokens[0] + 1) % 200 + 3
    request = driver.request(graph_of([wrong, tokens[1]], tokens[:2], [tokens[0], wrong]))
    receipt = await port.verify(request)
    assert receipt.hidden is not None
    assert (receipt.hidden.start, receipt.hidden.stop) == (len(PROMPT) - 1, receipt.prefix_len - 1)
    assert receipt.hidden_handle == f"{name}@1"
    again = await port.verify(request)
    assert again == receipt
    assert again.hidden == (await port.get_receipt(name, 0)).hidden == receipt.hidden
    driver.follow(receipt)
    second = await driver.round()
    assert second.hidden is not None
    whole = await export(port, name, 0, second.prefix_len - 1)
    assert whole == joined([first, receipt.hidden, second.hidden])
    assert await export(port, name, 3, 6) == whole.between(3, 6)
    # A session that was never drafted for computes the same rows.
    fresh = await Driver.open(port, f"{name}-fresh", driver.frontier.tokens.tolist(), sources=HEADS)
    prefilled = await export(port, fresh.session_id, 0, whole.stop)
    for tap in TAPS:
        np.testing.assert_allclose(whole.taps[tap], prefilled.taps[tap], atol=1e-4)
    for session_id in (name, f"{name}-plain", f"{name}-fresh"):
        await port.close_session(session_id)


async def test_exports_that_cannot_be_are_refused_by_name(port: VerifierPort, name: str) -> None:
    await Driver.open(port, name, PROMPT, sources=HEADS)
    plain = await Driver.open(port, f"{name}-plain", PROMPT)
    assert (await plain.round()).hidden is None
    for session_id, start, stop, kind, field in (
        (name, 0, len(PROMPT), FailedPrecondition, "stop"),
        (name, 2, 2, InvalidArgument, "start"),
        (name, -1, 2, InvalidArgument, "start"),
        (f"{name}-plain", 0, 2, FailedPrecondition, "taps"),
        (f"{name}-none", 0, 2, NotFound, "session_id"),
    ):
        with pytest.raises(kind) as refused:
            await port.export_hidden(session_id, start, stop)
        assert refused.value.field == field
    await port.close_session(name)
    with pytest.raises(NotFound):
        await port.export_hidden(name, 0, 2)
    await port.close_session(f"{name}-plain")


async def test_a_tap_that_the_target_lacks_is_refused_at_opening(port: VerifierPort, name: str) -> None:
    unknown = replace(LOOKUP, name="head", taps=("final_norm", "layer:40"))
    with pytest.raises(InvalidArgument, match="'head'") as refused:
        await Driver.open(port, name, PROMPT, sources=(unknown,))
    assert refused.value.field == "manifest.sources.taps"
    assert "layer:40" in refused.value.message


async def test_rows_of_sessions_side_by_side_do_not_meet(port: VerifierPort, name: str) -> None:
    prompts = [[70 + i, *PROMPT] for i in range(3)]
    alone = []
    for number, prompt in enumerate(prompts):
        driver = await Driver.open(port, f"{name}-alone{number}", prompt, sources=HEADS)
        alone.append([(await driver.round()).hidden for _ in range(3)])
    drivers = [
        await Driver.open(port, f"{name}-{number}", prompt, sources=HEADS) for number, prompt in enumerate(prompts)
    ]

    async def run(driver: Driver) -> list[HiddenRows | None]:
        return [(await driver.round()).hidden for _ in range(3)]

    together = await asyncio.gather(*(run(driver) for driver in drivers))
    for theirs, ours in zip(alone, together, strict=True):
        for one, other in zip(theirs, ours, strict=True):
            assert one is not None
            assert other is not None
            assert (one.start, one.count) == (other.start, other.count)
            for tap in TAPS:
                np.testing.assert_allclose(one.taps[tap], other.taps[tap], atol=1e-4)
    for number in range(3):
        await port.close_session(f"{name}-alone{number}")
        await port.close_session(f"{name}-{number}")
