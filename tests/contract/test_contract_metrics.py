"""A process exports its metrics to where the environment says, to the last one before it ends."""

import os
import subprocess
import sys

from orchestrator import telemetry_names as names
from tests.contract.otlp_receiver import otlp_receiver

# What an orchestrator process does: metrics are made before and after the export begins, and counted in rounds.
ROUNDS = """
import sys
from contracts.ledger import RoundLedger
from opentelemetry import metrics
from orchestrator.metrics import Metrics
from services import telemetry
from tests.helpers.proposals import paths_proposal
from contracts.graph import merge_by_full_prefix

counted = Metrics(metrics.get_meter("draftproof.orchestrator"))
stop = telemetry.start("draftproof-orchestrator")
graph = merge_by_full_prefix([paths_proposal("lookup", [[1, 2, 3]])], budget=8)
for accepted in (2, 3):
    ledger = RoundLedger(
        wire=40, committed=accepted + 1, candidates=3, accepted=accepted,
        proposed_by={"lookup": 3}, accepted_by={"lookup": accepted}, failures={"retrieval": "late"},
    )
    counted.round(graph, ledger, verifier="greedy")
counted.opened(prompt=30, cached=16)
stop()
print("opentelemetry.sdk.metrics" in sys.modules, "opentelemetry.sdk.trace" in sys.modules)
"""


def run(**variables: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", ROUNDS], env={**kept, **variables}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_counters_reach_the_collector_under_vllms_names() -> None:
    with otlp_receiver() as receiver:
        run(OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=receiver.endpoint, OTEL_EXPORTER_OTLP_INSECURE="true")
    exported = receiver.metrics["draftproof-orchestrator"]
    greedy, lookup = frozenset({("verifier", "greedy")}), frozenset({("source", "lookup")})
    assert exported[names.METRIC_DRAFTS] == {greedy: 2}
    assert exported[names.METRIC_DRAFT_TOKENS] == {greedy: 6}
    assert exported[names.METRIC_ACCEPTED_TOKENS] == {greedy: 5}
    assert exported[names.METRIC_ACCEPTED_PER_POS] == {
        frozenset({("verifier", "greedy"), ("position", str(position))}): count
        for position, count in enumerate((2, 2, 1))
    }
    assert exported[names.METRIC_COMMITTED] == {greedy: 7}
    assert exported[names.METRIC_SOURCE_PROPOSED] == {lookup: 6}
    assert exported[names.METRIC_SOURCE_ACCEPTED] == {lookup: 5}
    assert exported[names.METRIC_SOURCE_FAILURES] == {frozenset({("source", "retrieval")}): 2}
    assert exported[names.METRIC_ROUND_OVERHEAD] == {greedy: 2}
    assert exported[names.METRIC_PREFIX_QUERIES] == {frozenset(): 30}
    assert exported[names.METRIC_PREFIX_HITS] == {frozenset(): 16}


def test_without_a_collector_the_sdk_is_not_even_imported() -> None:
    assert run() == "False False"
