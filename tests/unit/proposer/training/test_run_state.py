"""A directory belongs to one run: another one is refused by name before it trains or writes anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.errors import DataLoss, FailedPrecondition
from proposer.heads import package
from proposer.heads.package import read_manifest
from proposer.training.dataset import Dataset
from proposer.training.loop import Recipe
from proposer.training.medusa2 import Medusa2Recipe
from proposer.training.recipes import recipe_of
from proposer.training.run import HeadPlan, train_head
from proposer.training.run_draft import DraftPlan, train_draft
from proposer.training.run_medusa2 import Medusa2Plan, train_medusa2
from tests.unit.proposer.training.tiny_data import EOS, QUIET, data_set, tiny_target

RECIPE = Recipe(token_budget=90, batch_tokens=30, learning_rate=3e-3, report_every=1)
PLAN = HeadPlan(recipe_of("eagle3", depth=2, inner=16, taps=("layer:0", "final_norm")), 40, RECIPE)
OPTIONS: dict[str, Any] = {"eos_ids": EOS, "command": "draftproof train", "reports": QUIET}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def data(target: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, Dataset]:
    root = tmp_path_factory.mktemp("data")
    return data_set(root / "a", target, count=30), data_set(root / "b", target, count=30, seed=1)


def head(plan: HeadPlan, data: Dataset, target: Path, out: Path, **changes: Any) -> None:
    train_head(plan, [data], target, out, target_name="tiny", **(OPTIONS | changes))


def interrupted(run: Callable[..., Any], *arguments: Any) -> None:
    """The run, ended after its first step was saved."""
    rows = 0

    def row(figures: object, budget: int) -> None:
        nonlocal rows
        rows += 1
        if rows == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(*arguments, reports=replace(QUIET, row=row))


def test_an_interrupted_run_goes_on_to_the_weights_of_an_unbroken_one(data, target: Path, tmp_path: Path) -> None:
    head(PLAN, data[0], target, tmp_path / "whole")
    interrupted(head, PLAN, data[0], target, tmp_path / "broken")
    assert not (tmp_path / "broken" / package.MANIFEST).exists()
    head(PLAN, data[0], target, tmp_path / "broken")
    whole, broken = (read_manifest(tmp_path / name) for name in ("whole", "broken"))
    assert broken.weights_sha256 == whole.weights_sha256
    assert broken.training["adopted_state"] is False


OTHERS = {
    "recipe.seed": replace(PLAN, recipe=replace(RECIPE, seed=9)),
    "recipe.token_budget": replace(PLAN, recipe=replace(RECIPE, token_budget=120)),
    "vocabulary_size": replace(PLAN, vocabulary=41),
    "prompts": replace(PLAN, prompts=True),
    "family": replace(PLAN, family=recipe_of("medusa", depth=2)),
    "depth": replace(PLAN, family=replace(PLAN.family, depth=3)),
    "shape": replace(PLAN, family=replace(PLAN.family, shape={"inner": 24})),
    "taps": replace(PLAN, family=replace(PLAN.family, taps=("final_norm", "layer:0"))),
    "noise": replace(PLAN, family=replace(PLAN.family, noise=0.5)),
}


def test_another_run_in_the_same_directory_is_refused_by_the_field_that_differs(
    data, target: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    head(PLAN, data[0], target, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def refused(plan: HeadPlan, one: Dataset, **changes: Any) -> str:
        with pytest.raises(FailedPrecondition) as refusal:
            head(plan, one, target, out, **changes)
        return refusal.value.field

    assert refused(PLAN, data[1]) == "state.data"
    assert refused(PLAN, data[0], eos_ids=(1, 2)) == "state.eos_ids"
    started = replace(PLAN, start=out)
    assert refused(started, data[0]) == "state.start"
    for field, plan in OTHERS.items():
        assert refused(plan, data[0]) == f"state.{field}"
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    # The directory is still its own run's.
    head(PLAN, data[0], target, out)


def test_medusa_2_and_drafts_are_bound_to_their_runs_too(data, target: Path, tmp_path: Path) -> None:
    joint = Medusa2Plan(HeadPlan(recipe_of("medusa", depth=1), 40, RECIPE), Medusa2Recipe(warm_up=1), rank=2)
    draft = DraftPlan((0, 2), 40, RECIPE)

    def medusa2(plan: Medusa2Plan, one: Dataset, **changes: Any) -> None:
        train_medusa2(plan, [one], target, tmp_path / "medusa2", target_name="tiny", **(OPTIONS | changes))

    def drafted(plan: DraftPlan, one: Dataset, **changes: Any) -> None:
        train_draft(plan, [one], target, tmp_path / "draft", **(OPTIONS | changes))

    interrupted(medusa2, joint, data[0])
    interrupted(drafted, draft, data[0])
    for run, plan, one, field in (
        (medusa2, replace(joint, rank=3), data[0], "rank"),
        (medusa2, replace(joint, joint=Medusa2Recipe(warm_up=2)), data[0], "joint.warm_up"),
        (medusa2, joint, data[1], "data"),
        (drafted, replace(draft, layers=(0, 1)), data[0], "layers"),
        (drafted, draft, data[1], "data"),
    ):
        with pytest.raises(FailedPrecondition) as refusal:
            run(plan, one)
        assert refusal.value.field == f"state.{field}"
    medusa2(joint, data[0])
    drafted(draft, data[0])


def without_identity(out: Path) -> None:
    """The state as earlier versions wrote it."""
    state = torch.load(out / "state.pt", weights_only=True)
    torch.save({name: value for name, value in state.items() if name not in ("identity", "adopted")}, out / "state.pt")


def test_a_state_without_identity_is_adopted_by_its_vocabulary_and_the_manifest_says_so(
    data, target: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    head(PLAN, data[0], target, tmp_path / "whole")
    vocabulary = package.load(
        tmp_path / "whole",
        {
            name: value.shape
            for name, value in torch.load(tmp_path / "whole" / "state.pt", weights_only=True)["network"].items()
        },
        target_digest=read_manifest(tmp_path / "whole").target_digest,
        tokenizer_digest=read_manifest(tmp_path / "whole").tokenizer_digest,
        eos_ids=EOS,
    ).vocabulary
    interrupted(head, PLAN, data[0], target, out)
    without_identity(out)
    with pytest.raises(FailedPrecondition) as refusal:
        head(PLAN, data[0], target, out)
    assert refusal.value.field == "state.identity"
    (out / "vocabulary.json").write_text(json.dumps(vocabulary.ids.tolist()))
    for plan, one in ((PLAN, data[1]), (replace(PLAN, vocabulary=41), data[0])):
        with pytest.raises(FailedPrecondition) as refusal:
            head(plan, one, target, out)
        assert refusal.value.field == "state.identity"
    with pytest.raises(FailedPrecondition) as refusal:
        head(replace(PLAN, family=recipe_of("eagle", depth=2, inner=16)), data[0], target, out)
    assert refusal.value.field == "state.network"
    head(PLAN, data[0], target, out)
    assert read_manifest(out).training["adopted_state"] is True
    assert read_manifest(out).weights_sha256 == read_manifest(tmp_path / "whole").weights_sha256
    # From its first saving on it has an identity like any other.
    with pytest.raises(FailedPrecondition) as refusal:
        head(replace(PLAN, recipe=replace(RECIPE, seed=9)), data[0], target, out)
    assert refusal.value.field == "state.recipe.seed"


@pytest.mark.parametrize("content", [b"", b"no state", b"PK\x03\x04cut off"])
def test_a_state_that_cannot_be_read_is_data_loss(data, target: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state.pt").write_bytes(content)
    with pytest.raises(DataLoss, match="state"):
        head(PLAN, data[0], target, tmp_path)
    torch.save({"step": 1}, tmp_path / "state.pt")
    with pytest.raises(DataLoss, match="no state of a training run"):
        head(PLAN, data[0], target, tmp_path)


def test_a_package_keeps_the_records_of_the_runs_before_it(data, target: Path, tmp_path: Path) -> None:
    head(PLAN, data[0], target, tmp_path / "a", command="one")
    # The first package as earlier versions wrote it: commands alone.
    path = tmp_path / "a" / package.MANIFEST
    raw = json.loads(path.read_text())
    raw["training"]["before"] = ["zero"]
    path.write_text(json.dumps(raw))
    other = replace(RECIPE, seed=4)
    head(replace(PLAN, recipe=other, start=tmp_path / "a"), data[1], target, tmp_path / "b", command="two")
    head(replace(PLAN, start=tmp_path / "b", prompts=True), data[0], target, tmp_path / "c", command="three")
    first, second, third = (read_manifest(tmp_path / name) for name in "abc")
    before = third.training["before"]
    assert before[0] == "zero"
    assert [one["command"] for one in before[1:]] == ["one", "two"]
    assert [one["weights_sha256"] for one in before[1:]] == [first.weights_sha256, second.weights_sha256]
    assert [one["data"] for one in before[1:]] == [[data[0].digest], [data[1].digest]]
    assert [one["recipe"]["seed"] for one in before[1:]] == [0, 4]
    assert before[2]["started_from"] == first.weights_sha256
    assert before[2]["tokens"] == second.training["tokens"]
