"""`draftproof calibrate --source head`: a comb over the served head, an artifact bound to its weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from contracts.calibration import CalibrationUse, calibration_from_bytes
from contracts.errors import FailedPrecondition, InvalidArgument
from contracts.sampling import SamplingPolicy
from contracts.topology import SamplingRelation
from proposer.heads.package import read_manifest
from proposer.topology.calibrated import comb, plan_of
from proposer.topology.plan import FixedTree
from services.calibration.heads import Heads
from services.calibration.measure import Measuring, measure
from services.calibration.stack import local_stack
from services.cli import build_app
from services.cli.console import summary
from services.cli.generate import as_record
from services.settings import AllSettings
from tests.contract.tiny_head import tiny_head
from tests.contract.tiny_service import tiny_service_checkpoint

PROMPTS = [[0, 40, 41, 42], [0, 70, 71]]
# A minute a pass: however slow the machine that runs this test, drafting pays.
CURVE = ((1, 60 * 10**9), (8, 61 * 10**9))
GREEDY = SamplingPolicy(temperature=0.0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> AllSettings:
    root = tmp_path_factory.mktemp("head")
    checkpoint = tiny_service_checkpoint(root)
    return AllSettings(
        model=str(checkpoint),
        dtype="float32",
        backend="cpu-torch",
        threads=1,
        kv_tokens=4096,
        head=str(tiny_head(root, checkpoint, "medusa")),
        draft_dtype="float32",
        draft_threads=1,
        draft_kv_tokens=4096,
    )


@pytest.fixture(autouse=True)
def torch_threads() -> object:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


async def test_a_heads_comb_tries_every_rank_and_its_artifact_holds_for_this_head_alone(settings: AllSettings) -> None:
    heads = Heads(settings)
    source = heads.source(SamplingRelation.BEAM, FixedTree(comb(3, 2)))
    async with local_stack(settings, [source], hidden=heads.hidden) as stack:
        made = await measure(stack, PROMPTS, CURVE, Measuring("head", 2, 3, GREEDY, drafter=heads.digest))
    # The first round of a prompt has the prompt's rows too: every rank of the first level is tried as often as the others.
    assert made.trials[0][0] > 0
    assert len(set(made.trials[0])) == 1
    assert made.drafter == read_manifest(Path(settings.head)).weights_sha256
    heads.source(SamplingRelation.BEAM, plan_of(CalibrationUse(made)))
    for other, field in ((replace(made, drafter="d" * 64), "drafter"), (replace(made, drafter=""), "drafter")):
        with pytest.raises(FailedPrecondition) as refusal:
            heads.source(SamplingRelation.BEAM, plan_of(CalibrationUse(other)))
        assert refusal.value.field == f"calibration.{field}"
        forced = heads.source(SamplingRelation.BEAM, plan_of(CalibrationUse(other, forced=True)))
    async with local_stack(settings, [forced], hidden=heads.hidden) as stack:
        final = (await stack.generate(PROMPTS[0], GREEDY, ("head",))).final
    assert final.certificate.forced_calibrations == {"head": other.hash}
    assert "head by a forced calibration" in summary(final)
    assert as_record([], final)["certificate"]["forced_calibrations"] == {"head": other.hash}


def command(settings: AllSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    for name in ("model", "dtype", "backend", "threads", "kv_tokens", "head", "draft_dtype", "draft_kv_tokens"):
        monkeypatch.setenv(f"DRAFTPROOF_{name.upper()}", str(getattr(settings, name)))
    monkeypatch.setenv("DRAFTPROOF_DRAFT_THREADS", "1")
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps({"question": f"q{n}"}) + "\n" for n in range(3)))
    common = ["--prompts", str(questions), "--count", "1", "--max-tokens", "6", "--rows", "4"]
    return CliRunner().invoke(build_app(), ["calibrate", str(tmp_path / "made.json"), *common, *words])


def test_the_command_calibrates_the_served_head_and_measures_its_speed_up(
    settings: AllSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    charts = tmp_path / "charts"
    words = ("--source", "head", "--ranks", "2", "--depth", "2", "--plots", str(charts), "--sizes", "1")
    result = command(settings, tmp_path, monkeypatch, *words)
    assert result.exit_code == 0, result.output
    made = calibration_from_bytes((tmp_path / "made.json").read_bytes())
    assert made.source == "head"
    assert made.drafter == read_manifest(Path(settings.head)).weights_sha256
    assert [len(row) for row in made.trials] == [2, 2]
    assert {path.name for path in charts.iterdir()} >= {"acceptance.svg", "passes.svg"}


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("--source", "head", "--ranks", "8", "--depth", "16"), "ranks"),
        (("--ranks", "64", "--depth", "2"), "ranks"),
        (("--source", "head", "--depth", "4"), "depth"),
        (("--source", "prompt_lookup", "--relation", "beam"), "relation"),
        (("--source", "head", "--draft-model", "elsewhere"), "draft_model"),
    ],
)
def test_what_would_be_cut_or_ignored_is_refused_by_name(
    settings: AllSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], field: str
) -> None:
    result = command(settings, tmp_path, monkeypatch, *words)
    assert isinstance(result.exception, InvalidArgument), result.output
    assert result.exception.field == field
    assert not (tmp_path / "made.json").exists()
