"""Calibration over the local stack with tiny models: counts that can be foretold, an artifact that says where it is from."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from contracts.calibration import CalibrationUse, calibration_from_bytes
from contracts.errors import FailedPrecondition, InvalidArgument, NotFound
from contracts.sampling import SamplingPolicy
from contracts.topology import SamplingRelation
from contracts.tree_shape import chain, shape_from_paths
from proposer.topology.calibrated import comb, plan_of, rates
from proposer.topology.plan import FixedTree
from services.calibration.compare import PLAIN, Way, best_of_size, compare
from services.calibration.drafts import Drafts
from services.calibration.measure import Measuring, measure
from services.calibration.passes import load_target, measure_passes
from services.calibration.plots import write_plots
from services.calibration.prompts import digest_of, read_seed_prompts
from services.calibration.stack import local_stack
from services.cli import build_app
from services.settings import AllSettings
from tests.contract.tiny_service import tiny_service_checkpoint

PROMPTS = [[0, 40, 41, 42], [0, 70, 71]]
# A minute a pass: however slow the machine that runs this test, drafting pays.
CURVE = ((1, 60 * 10**9), (8, 61 * 10**9))
GREEDY = SamplingPolicy(temperature=0.0, max_tokens=10, ignore_eos=True)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> AllSettings:
    """The target is its own draft."""
    checkpoint = str(tiny_service_checkpoint(tmp_path_factory.mktemp("calibration")))
    return AllSettings(
        model=checkpoint,
        dtype="float32",
        backend="cpu-torch",
        threads=1,
        kv_tokens=4096,
        draft_model=checkpoint,
        draft_dtype="float32",
        draft_threads=1,
        draft_kv_tokens=4096,
    )


@pytest.fixture(autouse=True)
def torch_threads() -> object:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


async def test_the_target_as_its_own_draft_is_always_right_at_the_first_rank(settings: AllSettings) -> None:
    source = Drafts(settings).source(SamplingRelation.BEAM, FixedTree(comb(2, 3)))
    async with local_stack(settings, [source]) as stack:
        made = await measure(
            stack, PROMPTS, CURVE, Measuring("draft_model", 3, 2, GREEDY, prompts=("q.jsonl",), made_on="2026-11-29")
        )
    # Rounds of 4, 4 and 2 tokens a prompt: the last is planned one deep, and ends there.
    assert made.trials == ((6, 6), (4, 4), (4, 4))
    assert made.hits == ((6, 0), (4, 0), (4, 0))
    assert (made.rounds, made.committed) == (6, 20)
    assert (made.verifier, made.relation) == ("greedy", "beam")
    assert made.prompts_digest == digest_of(PROMPTS)
    assert made.source_version == source.describe().version
    assert made.tree == chain(3).parents
    assert min(made.draft_ns, made.overhead_ns) > 0
    assert calibration_from_bytes(made.to_bytes()) == made


async def test_a_measured_calibration_serves_the_stack_it_was_measured_on_and_the_certificate_names_it(
    settings: AllSettings,
) -> None:
    drafts = Drafts(settings)
    async with local_stack(settings, [drafts.source(SamplingRelation.BEAM, FixedTree(comb(2, 2)))]) as stack:
        made = await measure(stack, PROMPTS[:1], CURVE, Measuring("draft_model", 2, 2, GREEDY, drafter=drafts.digest))
    calibrated = drafts.source(SamplingRelation.BEAM, plan_of(CalibrationUse(made)))
    async with local_stack(settings, [calibrated]) as stack:
        greedy = await stack.generate(PROMPTS[0], GREEDY, ("draft_model",))
        assert greedy.final.certificate.accepted_by["draft_model"] > 0
        assert f"+calibration:{made.hash}".encode() in greedy.final.certificate.manifest
        sampled = SamplingPolicy(temperature=1.0, max_tokens=4, ignore_eos=True)
        refused = await stack.generate(PROMPTS[0], sampled, ("draft_model",))
        assert "calibration.verifier" in refused.final.certificate.failures["draft_model"]
        assert refused.tokens == (await stack.generate(PROMPTS[0], sampled, ())).tokens


async def test_counts_under_sampling_follow_the_membership_verifier(settings: AllSettings) -> None:
    policy = SamplingPolicy(temperature=1.0, seed=3, max_tokens=24, ignore_eos=True)
    source = Drafts(settings).source(SamplingRelation.BEAM, FixedTree(comb(4, 2)))
    async with local_stack(settings, [source]) as stack:
        made = await measure(stack, PROMPTS, CURVE, Measuring("draft_model", 2, 4, policy))
    assert made.verifier == "membership"
    accepted = sum(sum(row) for row in made.hits)
    assert made.committed == 48
    # Every round publishes what it accepted and one more, but for those that the length ended within the tree.
    assert made.committed - made.rounds - 2 <= accepted <= made.committed - made.rounds + 2
    table = rates(made.trials, made.hits)
    assert 0.0 < table[0].sum() < 1.0


async def test_a_source_that_is_not_there_or_offers_nothing_is_refused(settings: AllSettings) -> None:
    source = Drafts(settings).source(SamplingRelation.BEAM, FixedTree(chain(0)))
    async with local_stack(settings, [source]) as stack:
        with pytest.raises(FailedPrecondition, match="not served here"):
            await measure(stack, PROMPTS, CURVE, Measuring("heads", 1, 1, GREEDY))
        with pytest.raises(FailedPrecondition, match="offered nothing"):
            await measure(stack, PROMPTS[:1], CURVE, Measuring("draft_model", 1, 1, GREEDY))


async def test_ways_are_compared_on_the_same_prompts_with_the_same_text(settings: AllSettings) -> None:
    drafts = Drafts(settings)
    ways = [Way("short", 1, 1), Way("long", 4, 4)]
    sources = [drafts.source(SamplingRelation.BEAM, FixedTree(chain(w.node_budget)), name=w.source) for w in ways]
    seen = []
    async with local_stack(settings, sources) as stack:
        results = await compare(stack, PROMPTS, GREEDY, ways, done=lambda: seen.append(1))
    assert len(seen) == 6
    assert results["long"].texts == results["short"].texts == results[PLAIN].texts
    assert results["short"].tokens_per_round == 2.0
    assert results[PLAIN].tokens_per_round == 1.0
    assert [tokens for tokens, _ in results["long"].pairs] == [10.0, 10.0]
    # The first round, of five tokens here, is left out.
    assert [tokens for tokens, _ in results["long"].cpu_pairs] == [5.0, 5.0]
    assert all(seconds > 0.0 for _, seconds in results[PLAIN].cpu_pairs)
    assert not results["long"].failures


@pytest.mark.parametrize(
    ("relation", "verifier", "keeps_the_text"),
    [
        (SamplingRelation.WITHOUT_REPLACEMENT, "sequoia", False),
        (SamplingRelation.INDEPENDENT, "specinfer", False),
        (SamplingRelation.SHARED_NOISE, "gumbel_coupled", True),
        (SamplingRelation.BEAM, "membership", True),
    ],
)
async def test_a_planned_tree_is_verified_under_each_relation(
    settings: AllSettings, relation: SamplingRelation, verifier: str, keeps_the_text: bool
) -> None:
    shape = shape_from_paths([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)])
    policy = SamplingPolicy(temperature=0.7, seed=5, max_tokens=16, ignore_eos=True)
    async with local_stack(settings, [Drafts(settings).source(relation, FixedTree(shape))]) as stack:
        drafted = await stack.generate(PROMPTS[0], policy, ("draft_model",), max_depth=3, verifier=verifier)
        plain = await stack.generate(PROMPTS[0], policy, ())
    assert drafted.final.certificate.verifier == verifier
    assert not drafted.final.certificate.failures
    assert max(ledger.candidates for ledger in drafted.rounds) <= len(shape)
    assert len(drafted.rounds) < 16
    assert len(drafted.tokens) == 16
    assert not keeps_the_text or drafted.tokens == plain.tokens


def test_passes_are_timed_by_rows_with_the_clock_given(settings: AllSettings) -> None:
    backend = load_target(settings, kv_tokens=512)
    ticks = iter(range(0, 10**9, 1000))
    curve = measure_passes(backend, (4, 1), context=32, repeats=3, clock=lambda: next(ticks))
    assert curve == ((1, 1000), (4, 1000))
    real = measure_passes(backend, (1, 4), context=32, repeats=2, clock=time.perf_counter_ns)
    assert 0 < real[0][1] <= real[1][1]
    with pytest.raises(InvalidArgument, match="context"):
        measure_passes(backend, (1,), context=10**6)
    # Everything was given back: the whole budget can be reserved.
    backend.release(backend.allocate(512))


def test_the_best_tree_of_a_size_has_that_size(settings: AllSettings) -> None:
    from tests.unit.proposer.topology.calibrations import calibration

    plan = plan_of(CalibrationUse(calibration()))
    for nodes in range(1, 7):
        found = best_of_size(plan, nodes)
        assert found is not None
        assert len(found[0]) == nodes
        assert found[1].nodes == nodes + 1
    assert best_of_size(plan, 7) is None


def test_charts_show_what_was_counted(tmp_path: Path) -> None:
    from tests.unit.proposer.topology.calibrations import calibration

    assert [path.name for path in write_plots(calibration(), tmp_path)] == ["acceptance.svg", "passes.svg"]
    written = write_plots(calibration(), tmp_path, [(2, 1.2, 1.1), (4, 1.5, 1.3)])
    assert [path.name for path in written] == ["acceptance.svg", "passes.svg", "speedup.svg"]
    assert written[2].read_text().count("<circle") == 4


def test_seed_prompts_come_from_the_paths_in_turn(tmp_path: Path) -> None:
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps({"question": f"q{n}"}) + "\n" for n in range(3)))
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "a.md").write_text("word " * 400)
    (docs / "b.py").write_text("x = 1\n" * 400)
    read = read_seed_prompts([questions, docs], 4)
    assert read.files == ("questions.jsonl", "docs")
    texts = [messages[0]["content"] for messages in read.messages]
    assert [texts[0], texts[2]] == ["q0", "q1"]
    assert texts[1].startswith("Explain the following passage.\n\nword")
    assert len(texts) == 4


def test_evaluation_sets_and_empty_paths_are_refused(tmp_path: Path) -> None:
    for name in ("spec_bench_half.jsonl", "humaneval_half.jsonl", "edit_eval_half.jsonl", "GSM8K_test.jsonl"):
        with pytest.raises(InvalidArgument, match="evaluation set"):
            read_seed_prompts([tmp_path / name], 1)
    with pytest.raises(NotFound, match="not there"):
        read_seed_prompts([tmp_path / "none.jsonl"], 1)
    with pytest.raises(NotFound, match="nothing to ask"):
        read_seed_prompts([tmp_path], 1)
    (tmp_path / "odd.jsonl").write_text('{"answer": 1}\n')
    with pytest.raises(InvalidArgument, match=r"odd\.jsonl\[0\]"):
        read_seed_prompts([tmp_path / "odd.jsonl"], 1)


def test_the_command_explains_itself() -> None:
    result = CliRunner().invoke(build_app(), ["calibrate", "--help"], env={"COLUMNS": "120"})
    assert result.exit_code == 0
    assert "Example" in result.output
    assert "--draft-model" in result.output


def test_the_command_writes_an_artifact_and_charts(settings: AllSettings, tmp_path: Path, monkeypatch: Any) -> None:
    for name in (
        "model",
        "dtype",
        "backend",
        "threads",
        "kv_tokens",
        "draft_dtype",
        "draft_threads",
        "draft_kv_tokens",
    ):
        monkeypatch.setenv(f"DRAFTPROOF_{name.upper()}", str(getattr(settings, name)))
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps({"question": f"q{n}"}) + "\n" for n in range(3)))
    out, charts = tmp_path / "deep" / "made.json", tmp_path / "charts"
    words = [str(out), "--draft-model", settings.draft_model, "--prompts", str(questions), "--plots", str(charts)]
    sizes = ["--count", "1", "--max-tokens", "6", "--ranks", "2", "--depth", "2", "--rows", "4", "--sizes", "1"]
    result = CliRunner().invoke(build_app(), ["calibrate", *words, *sizes])
    assert result.exit_code == 0, result.output
    made = calibration_from_bytes(out.read_bytes())
    assert made.hash in result.output
    assert made.prompts == ("questions.jsonl",)
    assert made.prompt_count == 1
    assert made.drafter == Drafts(settings).digest
    assert {path.name for path in charts.iterdir()} == {"acceptance.svg", "passes.svg", "speedup.svg"}
    wrong = CliRunner().invoke(build_app(), ["calibrate", *words, "--relation", "guess"])
    assert isinstance(wrong.exception, InvalidArgument)
