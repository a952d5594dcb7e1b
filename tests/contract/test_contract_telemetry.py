"""One trace a Generate and the counters of all, across processes, exported to where the environment says."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from contracts.sampling import SamplingPolicy
from orchestrator import telemetry_names as names
from orchestrator.events import Final
from orchestrator.request import GenerateRequest
from services import telemetry
from services.clients.generate import GenerateClient
from services.retriever_service.metrics import RESIDENT_BYTES, STORE_CONNECTED
from tests.contract.otlp_receiver import Points, otlp_receiver
from tests.contract.tiny_stack import INDEX, tiny_stack
from tests.helpers.fakes import collect

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def attributes_of(span: Any) -> dict[str, Any]:
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in span.attributes}


async def test_one_trace_over_all_services_and_the_metrics_of_each(
    tiny_checkpoint_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with otlp_receiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_INSECURE", "true")
        monkeypatch.setattr(telemetry, "traceparent", lambda: CALLER)
        # Leaving the block stops the services, which flushes their spans.
        with tiny_stack(tiny_checkpoint_directory, tmp_path) as stack:
            client = GenerateClient(stack.orchestrator.endpoint)
            policy = SamplingPolicy(temperature=0.0, max_tokens=12, ignore_eos=True)
            request = GenerateRequest(
                text="The quick brown fox. The quick", policy=policy, sources=("prompt_lookup", "retrieval")
            )
            _, final = await collect(client.generate(request))
            await client.close()
    check_trace(receiver.spans, final)
    check_metrics(receiver.metrics, final)


def check_trace(spans: list[tuple[str, Any]], final: Final) -> None:
    trace_id, caller = CALLER.split("-")[1:3]
    mine = [(service, span) for service, span in spans if span.trace_id.hex() == trace_id]
    by_id = {span.span_id: (service, span) for service, span in mine}
    counts = Counter((service, span.name.split("/")[0]) for service, span in mine)
    rounds = final.certificate.rounds
    assert counts["draftproof-orchestrator", "draftproof.generate"] == 1
    for service, name, number in (
        ("orchestrator", "draftproof.round", rounds),
        ("orchestrator", "draftproof.pack", rounds),
        ("orchestrator", "draftproof.verify", rounds),
        ("verifier", "draftproof.verifier.verify", rounds),
    ):
        assert counts[f"draftproof-{service}", name] == number, (name, counts)
    for part in ("queue", "target", "select", "commit"):
        assert counts["draftproof-orchestrator", f"draftproof.verify.{part}"] == rounds
    for service, name in (("proposer", "proposer.propose"), ("retriever", "retriever.retrieve")):
        assert counts[f"draftproof-{service}", f"draftproof.{name}"] >= 1
    for service, span in mine:
        if span.name == "draftproof.generate":
            assert span.parent_span_id.hex() == caller
            assert attributes_of(span)["draftproof.manifest.hash"] == final.certificate.manifest_hash
        else:
            # Every other span hangs below one of ours, in the process that called it.
            parent_service, parent = by_id[span.parent_span_id]
            assert parent_service == "draftproof-orchestrator"
            if service != "draftproof-orchestrator":
                assert parent.name.split("/")[0] in {"draftproof.propose", "draftproof.retrieve", "draftproof.verify"}
        if span.name == "draftproof.round":
            assert any(key.startswith("draftproof.ledger.") for key in attributes_of(span))


def check_metrics(metrics: dict[str, dict[str, Points]], final: Final) -> None:
    ledger = final.certificate.ledger
    orchestrator, retriever = metrics["draftproof-orchestrator"], metrics["draftproof-retriever"]
    greedy = frozenset({("verifier", "greedy")})
    assert orchestrator[names.METRIC_DRAFT_TOKENS] == {greedy: ledger.candidates}
    assert orchestrator[names.METRIC_ACCEPTED_TOKENS] == {greedy: ledger.accepted}
    assert orchestrator[names.METRIC_COMMITTED] == {greedy: ledger.committed}
    assert 0 < orchestrator[names.METRIC_DRAFTS][greedy] <= ledger.rounds
    assert sum(orchestrator.get(names.METRIC_ACCEPTED_PER_POS, {}).values()) == ledger.accepted
    assert orchestrator[names.METRIC_SOURCE_PROPOSED] == {
        frozenset({("source", source)}): count for source, count in ledger.proposed_by.items()
    }
    assert orchestrator[names.METRIC_ROUND_OVERHEAD] == {greedy: ledger.rounds}
    assert orchestrator[names.METRIC_PREFIX_QUERIES] == {frozenset(): final.usage.prompt}
    assert retriever[STORE_CONNECTED] == {frozenset(): 1}
    assert retriever[RESIDENT_BYTES][frozenset({("index", INDEX)})] > 0
