"""Sources made for another tokenizer or target, and ports that break: what a request loses by them, and what it does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from contracts.capability import SourceDescription
from contracts.errors import FailedPrecondition
from contracts.retrieval import IndexDescription
from orchestrator.settings import OrchestratorSettings
from tests.helpers.fakes import FakeProposer, FakeRetriever, FakeVerifier, collect
from tests.helpers.generation import PATIENT, ask, corpus, orchestrator, text_of


class OfAnotherTokenizer(FakeRetriever):
    async def describe(self, tenant: str = "") -> Sequence[IndexDescription]:
        return [replace(index, tokenizer_digest="another") for index in await super().describe(tenant)]


class ForAnotherTarget(FakeProposer):
    async def describe(self) -> Sequence[SourceDescription]:
        return [replace(source, target_digest="another") for source in await super().describe()]


class Broken(FakeRetriever):
    async def describe(self, tenant: str = "") -> Sequence[IndexDescription]:
        raise ValueError("a bug of the port")


async def run(settings: OrchestratorSettings = PATIENT, fields: dict[str, Any] | None = None, **peers: Any) -> Any:
    return await collect(orchestrator(FakeVerifier(), settings=settings, **peers).generate(ask(**fields or {})))


async def test_a_default_index_of_another_tokenizer_is_absent_and_the_text_stays():
    plain, _ = await run(fields={"speculation": False})
    chunks, final = await run(retrievers=[OfAnotherTokenizer({"book": corpus()})])
    assert text_of(chunks) == text_of(plain)
    assert dict(final.certificate.absent) == {"retrieval": "source 'retrieval' uses another tokenizer than the target"}
    assert not final.certificate.failures


async def test_a_default_source_for_another_target_is_absent_and_the_others_draft():
    settings = replace(PATIENT, default_sources=("prompt_lookup", "retrieval"))
    _, final = await run(settings, proposers=[ForAnotherTarget()], retrievers=[FakeRetriever({"book": corpus()})])
    assert "another target" in final.certificate.absent["prompt_lookup"]
    assert "retrieval" not in final.certificate.absent


@pytest.mark.parametrize("fields", [{"sources": ("retrieval",)}, {"indexes": {"retrieval": "book"}}])
async def test_an_unfit_source_that_the_request_names_is_refused(fields: dict[str, Any]):
    with pytest.raises(FailedPrecondition, match=r"sources\.tokenizer_digest"):
        await run(fields=fields, retrievers=[OfAnotherTokenizer({"book": corpus()})])


async def test_a_port_that_breaks_while_it_describes_itself_is_absent():
    chunks, final = await run(retrievers=[Broken({"book": corpus()})])
    assert text_of(chunks)
    assert dict(final.certificate.absent) == {"retrieval": "its service has not answered yet"}
