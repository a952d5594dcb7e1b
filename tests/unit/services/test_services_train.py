"""`draftproof train ...` on a tiny target: each command leaves what the next one reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from contracts.errors import InvalidArgument
from models.checkpoint import tokenizer_digest
from models.config import read_config
from proposer.heads.families import load_head
from proposer.heads.package import read_manifest
from services.cli.train import app
from tests.unit.proposer.training.tiny_data import data_set, tiny_target


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tiny_target(tmp_path)
    data_set(tmp_path / "data", directory, count=30)
    monkeypatch.setenv("DRAFTPROOF_MODEL", str(directory))
    monkeypatch.setenv("DRAFTPROOF_CACHE_DIR", str(tmp_path / "cache"))
    return directory


@pytest.fixture(autouse=True)
def called(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the process was called with is recorded as the command, whatever called the tests."""
    monkeypatch.setattr("sys.argv", ["somewhere/draftproof", "train", "head"])


def run(tmp_path: Path, *words: str) -> None:
    common = ("--data", str(tmp_path / "data"), "--tokens", "90", "--vocabulary", "40", "--batch", "40")
    done = CliRunner().invoke(app, [*words, *common])
    if done.exception is not None:
        raise done.exception


def test_a_head_is_trained_and_gone_on_with(target: Path, tmp_path: Path) -> None:
    shape = ("--depth", "2", "--inner", "16", "--taps", "layer:0,final_norm")
    first, second = tmp_path / "first", tmp_path / "second"
    run(tmp_path, "head", "eagle3", str(first), *shape)
    run(tmp_path, "head", "eagle3", str(second), *shape, "--start", str(first), "--prompts", "--noise", "0.1")
    assert read_manifest(second).training["started_from"] == read_manifest(first).weights_sha256
    assert read_manifest(second).training["command"] == "draftproof train head"
    load_head(second, target, tokenizer_digest=tokenizer_digest(target), eos_ids=(1,))
    assert {path.name for path in second.iterdir()} >= {"figures.csv", "loss.svg", "accuracy.svg"}


def test_medusa_2_becomes_a_target_with_its_heads(target: Path, tmp_path: Path) -> None:
    run(tmp_path, "medusa2", str(tmp_path / "medusa2"), "--depth", "2", "--rank", "2", "--warm-up", "1", "--direct")
    assert "LM loss" in read_manifest(tmp_path / "medusa2").training["objective"]
    done = CliRunner().invoke(app, ["backbone", str(tmp_path / "medusa2"), str(tmp_path / "bound")])
    assert done.exception is None
    bound = tmp_path / "bound" / "target"
    load_head(tmp_path / "bound" / "head", bound, tokenizer_digest=tokenizer_digest(bound), eos_ids=(1,))


def test_a_draft_keeps_the_layers_asked_for(target: Path, tmp_path: Path) -> None:
    run(tmp_path, "draft", str(tmp_path / "draft"), "--layers", "0,2")
    assert read_config(tmp_path / "draft").num_layers == 2
    assert json.loads((tmp_path / "draft" / "training.json").read_text())["layers"] == [0, 2]
    with pytest.raises(InvalidArgument, match="layers"):
        run(tmp_path, "draft", str(tmp_path / "other"), "--layers", "first")


def test_options_that_nothing_would_read_are_refused_by_name(tmp_path: Path) -> None:
    out = str(tmp_path / "head")
    for words, field in (
        (("head", "medusa", out, "--inner", "16"), "inner"),
        (("head", "eagle", out, "--taps", "layer:0,final_norm"), "taps"),
        (("head", "hydra", out, "--noise", "0.1"), "noise"),
        (("head", "clover", out, "--depth", "40"), "depth"),
        (("head", "eagle3", out, "--workers", "3"), "workers"),
        (("medusa2", out, "--depth", "17"), "depth"),
    ):
        with pytest.raises(InvalidArgument) as refusal:
            run(tmp_path, *words)
        assert refusal.value.field == field
    done = CliRunner().invoke(app, ["data", str(tmp_path / "more"), "--maths-skip", "3"])
    assert isinstance(done.exception, InvalidArgument)
    assert done.exception.field == "maths_skip"
    assert not (tmp_path / "head").exists()
