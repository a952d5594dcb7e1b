"""The trace and the metrics of a Generate."""

from dataclasses import replace

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
from orchestrator.budget.adaptive import AdaptiveBudget
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


@pytest.mark.parametrize(("label", "forced"), [("forced-calibration:abc", True), ("calibration:abc", False)])
async def test_a_forced_calibration_is_named_beside_the_ledger_and_one_that_holds_is_not(
    bench, monkeypatch, label, forced
):
    described = bench.proposer.describe

    async def calibrated():
        return [replace(one, version=f"1+{label}") for one in await described()]

    monkeypatch.setattr(bench.proposer, "describe", calibrated)
    _, final = await collect(bench.orchestrator.generate(REQUEST))
    (root,) = bench.named(names.SPAN_GENERATE)
    assert final.certificate.forced_calibrations == ({"oracle": "abc"} if forced else {})
    assert root.attributes.get(names.FORCED_CALIBRATIONS) == (("oracle:abc",) if forced else None)


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


async def traced_rounds(budget: str, *, rounds: int = 60, **offers):
    """The round spans of one long request over the named sources."""
    bench = Bench()
    orchestrator = Orchestrator(
        bench.verifier,
        [FakeProposer(offers)],
        [],
        FakeTokenizer(),
        OrchestratorSettings(propose_deadline_ms=60_000.0, budget=budget),
        tracer=bench.provider.get_tracer("test"),
    )
    policy = SamplingPolicy(temperature=0.0, max_tokens=rounds, ignore_eos=True)
    await collect(
        orchestrator.generate(GenerateRequest(text="abab", policy=policy, max_depth=3, sources=tuple(offers)))
    )
    return [span.attributes for span in bench.named(names.SPAN_ROUND)]


def refuse(request):
    raise Unavailable("source", "down")


async def test_the_choice_and_its_inputs_are_in_the_trace_by_source():
    rounds = await traced_rounds("adaptive", oracle=oracle(babble), broken=refuse)
    last = rounds[-1]
    assert last[names.BUDGET_POLICY] == "adaptive"
    assert last[names.BUDGET_SOURCES] == ("oracle", "broken")
    assert rounds[0][names.BUDGET_STATES] == (names.STATE_ASKED, names.STATE_FAILED)
    assert rounds[1][names.BUDGET_STATES][1] == names.STATE_BACKING_OFF
    # What always holds is known to: by the candidates tried in this session.
    tried, accepted = last[names.BUDGET_TRIED][0], last[names.BUDGET_ACCEPTED][0]
    assert tried == accepted > 5
    assert last[names.BUDGET_TRIED][1] == 0.0
    chosen = next(attributes for attributes in reversed(rounds) if attributes[names.BUDGET_EXPECTED_US] > 0)
    assert chosen[names.BUDGET_PASS_US] >= chosen[names.BUDGET_ONE_ROW_US] > 0.0
    assert chosen[names.BUDGET_PASS_US] + chosen[names.BUDGET_IDLE_US] == pytest.approx(
        chosen[names.BUDGET_EXPECTED_US]
    )


async def test_a_fixed_budget_says_so_and_claims_no_thoughts():
    first = (await traced_rounds("fixed", oracle=oracle(babble)))[0]
    assert first[names.BUDGET_POLICY] == "fixed"
    assert first[names.BUDGET_STATES] == (names.STATE_ASKED,)
    assert (first[names.BUDGET_WORTHS_US], first[names.BUDGET_EXPECTED_US]) == ((0.0,), 0.0)


async def test_a_paused_source_is_told_from_one_without_a_share(monkeypatch):
    monkeypatch.setattr(AdaptiveBudget, "asked", lambda self, source: source != "paused")
    rounds = await traced_rounds("adaptive", oracle=oracle(babble), paused=oracle(babble))
    assert {attributes[names.BUDGET_STATES][1] for attributes in rounds} == {names.STATE_PAUSED}


async def test_nothing_is_worked_out_for_a_trace_that_nobody_takes(monkeypatch):
    def told(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("worked out for nobody")

    monkeypatch.setattr("orchestrator.round.set_choice", told)
    monkeypatch.setattr(AdaptiveBudget, "standing", told)
    settings = OrchestratorSettings(propose_deadline_ms=60_000.0, budget="adaptive")
    untraced = Orchestrator(FakeVerifier(), [FakeProposer({"oracle": oracle(babble)})], [], FakeTokenizer(), settings)
    chunks, _ = await collect(
        untraced.generate(GenerateRequest(text="abab", policy=REQUEST.policy, sources=("oracle",)))
    )
    assert sum(len(chunk.token_ids) for chunk in chunks) == 7


async def test_a_client_that_goes_away_leaves_the_finish_reason_cancelled_in_the_trace(bench):
    events = bench.orchestrator.generate(REQUEST)
    await anext(events)
    await events.aclose()
    (root,) = (span for span in bench.spans() if span.name == names.SPAN_GENERATE)
    assert root.attributes[names.GEN_AI_FINISH_REASONS] == ("cancelled",)
    assert root.status.status_code is StatusCode.UNSET
