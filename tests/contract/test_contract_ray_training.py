"""`draftproof train ... --ray` on a real Ray cluster of this machine: one process's shards, one process's steps."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from contracts.errors import FailedPrecondition, InvalidArgument, Unavailable
from models.load import load_backend
from proposer.training import blocks
from proposer.training.blocks import Decoding, Produce, blocks_of, in_process
from proposer.training.corpus import Example
from proposer.training.data import DataPlan, build
from proposer.training.dataset import Dataset
from proposer.training.generate import Encoded
from proposer.training.gradients import Gradients, GradientsOf, LearnerOrder, Learning, Measured
from proposer.training.loop import Figures
from proposer.training.seed_prompts import SeedPrompt, SeedTexts
from services.jobs.data_generation import on_ray, target_on_ray
from services.jobs.data_task import DataOrder
from services.jobs.ray_cluster import LOCAL, ray_cluster
from services.jobs.train_steps import RayGradients, on_actors
from tests.contract.ray_runs import RECIPE, RUNS, Interrupted, interrupt, parameters
from tests.unit.proposer.training.tiny_corpus import examples
from tests.unit.proposer.training.tiny_data import EOS, data_set, tiny_target

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


@pytest.fixture(scope="module")
def data(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return data_set(tmp_path_factory.mktemp("data"), target, count=30)


@pytest.fixture(scope="module")
def alone(
    data: Dataset, target: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, list[Figures]]]:
    """Each kind of run in this process: where it was written and its rows."""
    made = {}
    for kind, train in RUNS.items():
        out, rows = tmp_path_factory.mktemp("alone"), []
        train(data, target, out, None, lambda figures, budget, rows=rows: rows.append(figures))
        made[kind] = (out, rows)
    return made


def same(one: Path, two: Path) -> None:
    mine, theirs = parameters(one), parameters(two)
    assert list(mine) == list(theirs)
    for name, value in mine.items():
        assert torch.allclose(theirs[name], value, atol=1e-4), name


@pytest.mark.parametrize("kind", RUNS)
def test_steps_over_actors_train_what_one_process_trains(
    cluster: Any, alone: Any, data: Dataset, target: Path, tmp_path: Path, kind: str
) -> None:
    out, rows = alone[kind]
    together: list[Figures] = []
    RUNS[kind](data, target, tmp_path, on_actors(cluster, 2), lambda figures, budget: together.append(figures))
    for left, right in zip(rows, together, strict=True):
        assert right.tokens == left.tokens
        assert right.accuracy == pytest.approx(left.accuracy)
        assert right.held_out == pytest.approx(left.held_out)
        assert right.loss == pytest.approx(left.loss, rel=1e-4, abs=1e-5)
    same(out, tmp_path)


def test_a_run_goes_on_wherever_it_was_begun(
    cluster: Any, alone: Any, data: Dataset, target: Path, tmp_path: Path
) -> None:
    """Begun here and ended over actors, and the other way round: Medusa-2, whose stages count the run's steps."""
    here, there = None, on_actors(cluster, 1)
    for name, first, second in (("here first", here, there), ("there first", there, here)):
        out = tmp_path / name
        with pytest.raises(Interrupted):
            RUNS["medusa2"](data, target, out, first, interrupt)
        assert not (out / "manifest.json").exists()
        rows: list[Figures] = []
        RUNS["medusa2"](data, target, out, second, lambda figures, budget, rows=rows: rows.append(figures))
        assert rows[0].step == 2 * RECIPE.report_every
        same(alone["medusa2"][0], out)


class Losing:
    """The steps of a cluster that loses an actor before some of them."""

    def __init__(self, ray: Any, inner: GradientsOf, before: Container[int]) -> None:
        self._ray, self._inner, self._before = ray, inner, before

    def __call__(self, network: nn.Module, order: LearnerOrder) -> Gradients:
        steps = self._inner(network, order)
        assert isinstance(steps, RayGradients)

        def gradients(examples: Sequence[Example], step: int) -> Measured:
            if step in self._before:
                self._ray.kill(steps.actors[0])
            return steps(examples, step)

        return gradients


def test_a_step_that_loses_an_actor_is_taken_again(
    cluster: Any, alone: Any, data: Dataset, target: Path, tmp_path: Path
) -> None:
    losing = Losing(cluster, on_actors(cluster, 2), {4})
    RUNS["medusa2"](data, target, tmp_path, losing, lambda figures, budget: None)
    same(alone["medusa2"][0], tmp_path)


def test_more_actors_than_cores_are_refused_rather_than_waited_for(cluster: Any) -> None:
    with pytest.raises(InvalidArgument, match="workers: 3 actors"):
        on_actors(cluster, 3)


class Fatal:
    """An order whose actors end as soon as they have one."""

    def build(self) -> Learning:
        os._exit(1)


def test_a_cluster_that_keeps_losing_actors_ends_the_run_with_a_typed_error(cluster: Any) -> None:
    gradients = RayGradients(cluster, nn.Linear(1, 1), Fatal(), 1)
    with pytest.raises(Unavailable, match="ray: step 7 lost its actors 3 times"):
        gradients(examples(), 7)
