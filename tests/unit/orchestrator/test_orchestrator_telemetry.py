"""The trace and the metrics of a Generate."""

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from contracts.errors import InvalidArgument, Unavailable
from contracts.sampling import SamplingPolicy
from orchestrator import telemetry_names as names
from orchestrator.generate import Orchestrator
from orchestrator.request import GenerateRequest
from orchestrator.settings import OrchestratorSettings
from tests.helpers.fakes import FakeProposer, FakeRetriever, FakeTokenizer, FakeVerifier, babble, collect, oracle

REQUEST = GenerateRequest(
    text="abab", policy=SamplingPolicy(temperature=0.0, max_tokens=7), max_depth=3, sources=("oracle", "retrieval")
)


class Bench:
    """An orchestrator whose spans and metrics stay in memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.verifier = FakeVerifier()
        self.proposer = FakeProposer({"oracle": oracle(babble)})
        self.orchestrator = Orchestrator(
            self.verifier,
            [self.proposer],
            [FakeRetriever({"book": list(b"ababab")})],
            FakeTokenizer(),
            OrchestratorSettings(propose_deadline_ms=60_000.0),
            tracer=self.provider.get_tracer("test"),
            meter=MeterProvider([self.reader]).get_meter("test"),
        )

    def spans(self):
        return self.exporter.get_finished_spans()

    def children_of(self, parent) -> list[str]:
        below = [s for s in self.spans() if s.parent is not None and s.parent.span_id == parent.context.span_id]
        return [span.name for span in sorted(below, key=lambda span: span.start_time)]

    def named(self, name: str):
        return [span for span in self.spans() if span.name == name]

    def metric(self, name: str) -> dict[object, float]:
        data = self.reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
        points = next(m for m in data if m.name == name).data.data_points
        return {p.attributes.get(names.LABEL_POSITION, p.attributes.get(names.LABEL_SOURCE)): p.value for p in points}


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_one_trace_has_the_documented_shape(bench):
    await collect(bench.orchestrator.generate(REQUEST))
    (root,) = bench.named(names.SPAN_GENERATE)
    assert bench.children_of(root) == [names.SPAN_ROUND, names.SPAN_ROUND]
    for span in bench.named(names.SPAN_ROUND):
        assert set(bench.children_of(span)) == {
            f"{names.SPAN_PROPOSE}/oracle",
            f"{names.SPAN_RETRIEVE}/retrieval",
            names.SPAN_PACK,
            names.SPAN_VERIFY,
        }
    for span in bench.named(names.SPAN_VERIFY):
        assert bench.children_of(span) == [names.SPAN_QUEUE, names.SPAN_TARGET, names.SPAN_SELECT, names.SPAN_COMMIT]
    assert {span.context.trace_id for span in bench.spans()} == {root.context.trace_id}


async def test_parts_of_verify_lie_within_it_and_last_as_the_receipt_says(bench):
    await collect(bench.orchestrator.generate(REQUEST))
    verify = bench.named(names.SPAN_VERIFY)[0]
    target = next(s for s in bench.named(names.SPAN_TARGET) if s.parent.span_id == verify.context.span_id)
    assert verify.start_time <= target.start_time <= target.end_time <= verify.end_time
    assert target.end_time - target.start_time == pytest.approx(4_000, abs=2)


async def test_figures_and_hashes_are_attributes(bench):
    chunks, final = await collect(bench.orchestrator.generate(REQUEST))
    (root,) = bench.named(names.SPAN_GENERATE)
    assert root.attributes[names.MANIFEST_HASH] == final.certificate.manifest_hash
    assert root.attributes[names.GEN_AI_OUTPUT_TOKENS] == 7
    assert root.attributes[names.GEN_AI_FINISH_REASONS] == ("length",)
    first = bench.named(names.SPAN_ROUND)[0]
    assert first.attributes[names.ROUND_HASH] == chunks[0].round.round_hash
    assert first.attributes[f"{names.LEDGER_PREFIX}.verify_us"] == 4.0
    assert first.attributes[names.COMMITTED] == len(chunks[0].token_ids)


async def test_the_trace_joins_the_callers(bench):
    with bench.provider.get_tracer("caller").start_as_current_span("caller") as caller:
        await collect(bench.orchestrator.generate(REQUEST))
    assert bench.named(names.SPAN_GENERATE)[0].parent.span_id == caller.context.span_id


async def test_peers_are_called_inside_the_span_that_stands_for_the_call(bench):
    seen = {}
    verify, propose, open_session = bench.verifier.verify, bench.proposer.propose, bench.verifier.open_session

    def recording(name, call):
        async def wrapped(*args):
            seen.setdefault(name, trace.get_current_span().name)
            return await call(*args)

        return wrapped

    bench.verifier.verify = recording("verify", verify)
    bench.proposer.propose = recording("propose", propose)
    bench.verifier.open_session = recording("open", open_session)
    await collect(bench.orchestrator.generate(REQUEST))
    assert seen == {
        "open": names.SPAN_GENERATE,
        "propose": f"{names.SPAN_PROPOSE}/oracle",
        "verify": names.SPAN_VERIFY,
    }


async def test_a_failed_source_and_a_failed_request_show_as_errors(bench):
    bench.proposer.script.append(Unavailable("proposer", "gone"))
    await collect(bench.orchestrator.generate(REQUEST))
    failed = bench.named(f"{names.SPAN_PROPOSE}/oracle")[0]
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.attributes[names.FAILURE].startswith("UNAVAILABLE")
    assert bench.named(names.SPAN_GENERATE)[0].status.status_code is StatusCode.UNSET
    with pytest.raises(InvalidArgument):
        await collect(bench.orchestrator.generate(GenerateRequest(text="")))
    assert bench.named(names.SPAN_GENERATE)[1].status.status_code is StatusCode.ERROR


async def test_metrics_follow_the_schema_that_dashboards_know(bench):
    _, final = await collect(bench.orchestrator.generate(REQUEST))
    assert sum(bench.metric(names.METRIC_DRAFTS).values()) == 2
    assert sum(bench.metric(names.METRIC_DRAFT_TOKENS).values()) == final.usage.proposed
    assert sum(bench.metric(names.METRIC_ACCEPTED_TOKENS).values()) == final.usage.accepted == 5
    assert bench.metric(names.METRIC_ACCEPTED_PER_POS) == {0: 2, 1: 2, 2: 1}
    assert bench.metric(names.METRIC_SOURCE_ACCEPTED)["oracle"] == 5


async def test_cached_prompt_tokens_are_counted_in_usage_metrics_and_trace(bench):
    bench.verifier.cached_tokens = 3
    _, final = await collect(bench.orchestrator.generate(REQUEST))
    assert (final.usage.prompt, final.usage.cached) == (4, 3)
    assert bench.metric(names.METRIC_PREFIX_QUERIES) == {None: 4}
    assert bench.metric(names.METRIC_PREFIX_HITS) == {None: 3}
    (root,) = bench.named(names.SPAN_GENERATE)
    assert root.attributes[names.GEN_AI_CACHED_TOKENS] == 3


async def test_a_client_that_goes_away_leaves_the_finish_reason_cancelled_in_the_trace(bench):
    events = bench.orchestrator.generate(REQUEST)
    await anext(events)
    await events.aclose()
    (root,) = (span for span in bench.spans() if span.name == names.SPAN_GENERATE)
    assert root.attributes[names.GEN_AI_FINISH_REASONS] == ("cancelled",)
    assert root.status.status_code is StatusCode.UNSET
