"""`draftproof train data|head --ray` on a real Ray cluster of this machine: one process's shards, one process's steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.errors import FailedPrecondition
from models.load import load_backend
from proposer.heads.package import read_manifest
from proposer.training import blocks
from proposer.training.blocks import Decoding, Produce, blocks_of, in_process
from proposer.training.data import DataPlan, build
from proposer.training.dataset import Dataset
from proposer.training.generate import Encoded
from proposer.training.loop import Figures, Recipe
from proposer.training.recipes import recipe_of
from proposer.training.run import HeadPlan, train_head
from proposer.training.seed_prompts import SeedPrompt, SeedTexts
from services.jobs.data_generation import on_ray, target_on_ray
from services.jobs.data_task import DataOrder
from services.jobs.ray_cluster import LOCAL, ray_cluster
from services.jobs.train_steps import on_actors
from tests.unit.proposer.training.tiny_data import EOS, QUIET, data_set, tiny_target

pytest.importorskip("ray", reason="needs ray")
DECODING = Decoding(("final_norm", "layer:1"), EOS, 3, 4)


class Letters:
    """A tokenizer of letters: enough to make prompts of different lengths."""

    digest = "letters"

    def encode_chat(self, messages: Any) -> list[int]:
        text = " ".join(message["content"] for message in messages)
        return [2 + ord(letter) % 90 for letter in text][:20]

    def decode(self, token_ids: Any) -> str:
        return " ".join(f"w{token}" for token in token_ids)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_cluster(LOCAL, cores=2) as ray:
        yield ray


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_target(tmp_path_factory.mktemp("target"))


def test_tasks_write_the_shards_of_one_process(
    cluster: Any, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_PROMPTS", 5)
    order = DataOrder(target, "float32", DECODING)
    info = target_on_ray(cluster, order)
    backend = load_backend(target, dtype="float32", kv_budget_tokens=4400, threads=1)
    assert info == backend.info

    def made(name: str, produce: Produce) -> Dataset:
        return build(
            lambda identity: Dataset(tmp_path / name, identity),
            info,
            produce,
            Letters(),
            SeedTexts(maths=("What is 2 + 2?",)),
            [],
            DataPlan(rounds=2, seed=3, taps=DECODING.taps),
            progress=lambda done, planned, tokens: None,
        )

    here, there = made("here", in_process(backend, DECODING)), made("there", on_ray(cluster, order, info))
    assert len(here.shards()) > 2
    assert there.digest == here.digest
    assert [path.read_bytes() for path in there.shards()] == [path.read_bytes() for path in here.shards()]


def test_a_node_that_computes_with_something_else_is_refused(cluster: Any, target: Path) -> None:
    order = DataOrder(target, "float32", DECODING)
    other = replace(target_on_ray(cluster, order), checkpoint_digest="another")
    prompt = Encoded(SeedPrompt("p", "qa", ({"role": "user", "content": ""},), 0.0, 4), [5, 6, 7])
    with pytest.raises(FailedPrecondition, match=r"data\.target"):
        list(on_ray(cluster, order, other)(blocks_of([prompt], 0), lambda conversation: None))


def test_steps_over_actors_train_the_head_of_one_process(cluster: Any, target: Path, tmp_path: Path) -> None:
    data = data_set(tmp_path / "data", target, count=30)
    family = recipe_of("hydra++", depth=2, inner=16)
    recipe = Recipe(token_budget=200, batch_tokens=40, learning_rate=3e-3, report_every=2)
    histories: list[list[Figures]] = []
    for name, gradients in (("one", None), ("two", on_actors(cluster, family, 2))):
        history: list[Figures] = []
        train_head(
            HeadPlan(family, 40, recipe),
            [data],
            target,
            tmp_path / name,
            target_name="tiny",
            eos_ids=EOS,
            command="draftproof train",
            reports=replace(QUIET, row=lambda figures, budget, history=history: history.append(figures)),
            gradients_of=gradients,
        )
        histories.append(history)
    alone, together = histories
    for left, right in zip(alone, together, strict=True):
        assert right.accuracy == pytest.approx(left.accuracy)
        assert right.loss == pytest.approx(left.loss, rel=1e-4)
    one, two = (torch.load(tmp_path / name / "state.pt", weights_only=True)["network"] for name in ("one", "two"))
    for key, value in one.items():
        assert torch.allclose(two[key], value, atol=1e-4), key
    assert read_manifest(tmp_path / "two").training["tokens"] == read_manifest(tmp_path / "one").training["tokens"]
