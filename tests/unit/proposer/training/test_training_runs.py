"""Whole runs on a tiny target: heads from several data sets, Medusa-2 with its backbone, drafts made of its layers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from contracts.errors import FailedPrecondition, InvalidArgument
from models.backend import RowBlock
from models.checkpoint import digest, tokenizer_digest
from models.config import read_config
from models.load import load_backend
from models.weights import read_weights
from proposer.heads import package
from proposer.heads.families import load_head
from proposer.heads.package import read_manifest
from proposer.training.checkpoint_writer import write_checkpoint
from proposer.training.corpus import common_prefix, prepare, read_conversations
from proposer.training.dataset import Dataset
from proposer.training.draft import DraftNetwork
from proposer.training.eagle import EagleObjective
from proposer.training.loop import Figures, Recipe
from proposer.training.lora import LoraBackbone
from proposer.training.medusa2 import Medusa2Recipe
from proposer.training.prepared import Corpus, Target
from proposer.training.recipes import FamilyRecipe, recipe_of
from proposer.training.run import HeadPlan, train_head
from proposer.training.run_draft import DraftPlan, train_draft
from proposer.training.run_medusa2 import Medusa2Plan, bind, train_medusa2
from tests.unit.proposer.heads.tiny_heads import VOCABULARY, frozen, network
from tests.unit.proposer.training.tiny_corpus import batch
from tests.unit.proposer.training.tiny_data import EOS, QUIET, data_set, tiny_target

RECIPE = Recipe(token_budget=240, batch_tokens=40, learning_rate=3e-3, report_every=2)
OPTIONS = {"eos_ids": EOS, "command": "draftproof train", "reports": QUIET}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def data(target: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, Dataset]:
    """Two data sets; the second has one prompt of the first under a name of its own."""
    root = tmp_path_factory.mktemp("data")
    first = data_set(root / "a", target, count=40)
    second = data_set(root / "b", target, count=30, seed=1, prefix="q")
    repeated = replace(next(first.conversations()), name="again")
    second.append([repeated])
    return first, second


def logits(directory: Path, tokens: np.ndarray) -> torch.Tensor:
    backend = load_backend(directory, implementation="cpu-torch", kv_budget_tokens=64)
    rows = np.arange(len(tokens))
    return backend.forward([RowBlock(backend.allocate(len(tokens)), tokens, rows, rows - 1)]).logits[0]


def eagle3(target: Path, data, out: Path, **changes: object) -> Figures:
    family = recipe_of("eagle3", depth=2, inner=16, taps=("layer:0", "final_norm"))
    plan = replace(HeadPlan(family, 40, RECIPE), **changes)  # type: ignore[arg-type]
    return train_head(plan, data, target, out, target_name="tiny", **OPTIONS)


def test_several_data_sets_are_one_set_without_repeated_prompts(data) -> None:
    names = [one.name for one in read_conversations(data, ("final_norm",))]
    # Too short to have a label two tokens on: no part of a training set.
    every = [
        one.name for dataset in data for one in dataset.conversations(()) if len(one.tokens) > one.answer_start + 2
    ]
    assert names == every[:-1]
    assert every[-1] == "again"
    corpus = Corpus.read(data, ())
    assert corpus.digests == tuple(one.digest for one in data)
    assert len(corpus.kept) + len(corpus.held_out) == len(names)
    assert corpus.held_out


def test_prompts_can_be_labels_but_for_what_all_begin_with(data, target: Path) -> None:
    conversations = read_conversations(data, ("final_norm",))
    assert common_prefix(conversations) == 2
    head = Target.read(target, EOS).frozen.rows(VOCABULARY)
    wide, narrow = prepare(conversations, VOCABULARY, head, label_start=2), prepare(conversations, VOCABULARY, head)
    assert [one.label_start for one in wide] == [2] * len(conversations)
    for more, less in zip(wide, narrow, strict=True):
        assert len(more.tokens) - more.label_tokens == 2
        assert bool((more.teacher_probs[1:].sum(dim=1) > 0.5).all())
        assert not less.teacher_probs[: less.label_start - 1].any()
        assert torch.equal(more.teacher_probs[less.label_start - 1 :], less.teacher_probs[less.label_start - 1 :])


def test_a_head_goes_on_from_a_package_and_keeps_its_vocabulary(data, target: Path, tmp_path: Path) -> None:
    eagle3(target, data[:1], tmp_path / "first")
    before = read_manifest(tmp_path / "first")
    still = replace(RECIPE, learning_rate=0.0)
    eagle3(target, data, tmp_path / "second", start=tmp_path / "first", recipe=still, prompts=True)
    after = read_manifest(tmp_path / "second")
    assert after.training["started_from"] == before.weights_sha256
    assert before.training["before"] == []
    assert [one["weights_sha256"] for one in after.training["before"]] == [before.weights_sha256]
    assert after.training["data"] == [one.digest for one in data]
    assert after.vocabulary_sha256 == before.vocabulary_sha256
    # Nothing was learnt at rate zero, so what was there before is all there is.
    assert after.weights_sha256 == before.weights_sha256


MEDUSA, EAGLE3 = (
    recipe_of("medusa", depth=1),
    recipe_of("eagle3", depth=2, inner=16, taps=("layer:0", "final_norm")),
)


@pytest.mark.parametrize(
    ("field", "made", "asked"),
    [
        ("family", EAGLE3, recipe_of("eagle", depth=2, inner=16)),
        ("taps", EAGLE3, replace(EAGLE3, taps=("final_norm", "layer:0"))),
        ("taps", EAGLE3, replace(EAGLE3, taps=("layer:1", "final_norm"))),
        ("shape", EAGLE3, replace(EAGLE3, shape={"inner": 24})),
        ("projection", MEDUSA, recipe_of("medusa-own", depth=1)),
        ("depth", MEDUSA, recipe_of("medusa", depth=2)),
    ],
)
def test_a_head_does_not_go_on_from_a_package_of_another_kind(
    data, target: Path, tmp_path: Path, field: str, made: FamilyRecipe, asked: FamilyRecipe
) -> None:
    """Tensors of the same shapes mean something else where the taps are in another order."""
    quick = replace(RECIPE, token_budget=1)
    eagle3(target, data[:1], tmp_path / "first", family=made, recipe=quick)
    with pytest.raises(InvalidArgument) as refusal:
        eagle3(target, data[:1], tmp_path / "second", family=asked, recipe=quick, start=tmp_path / "first")
    assert refusal.value.field == field
    assert not (tmp_path / "second" / package.MANIFEST).exists()


def test_a_head_goes_on_with_a_larger_vocabulary_and_never_with_a_smaller_one(
    data, target: Path, tmp_path: Path
) -> None:
    eagle3(target, data[:1], tmp_path / "first", vocabulary=30)
    still = replace(RECIPE, learning_rate=0.0)
    eagle3(target, data, tmp_path / "second", start=tmp_path / "first", recipe=still)
    first, second = (
        load_head(tmp_path / name, target, tokenizer_digest=tokenizer_digest(target), eos_ids=EOS)
        for name in ("first", "second")
    )
    assert len(second.head.vocabulary) == 40
    assert set(first.head.vocabulary.ids.tolist()) < set(second.head.vocabulary.ids.tolist())
    with pytest.raises(InvalidArgument, match="vocabulary: 29"):
        eagle3(target, data, tmp_path / "third", start=tmp_path / "first", vocabulary=29)
    own = recipe_of("medusa-own", depth=1)
    eagle3(target, data[:1], tmp_path / "own", vocabulary=30, family=own)
    with pytest.raises(InvalidArgument, match="vocabulary: 40"):
        eagle3(target, data, tmp_path / "fourth", start=tmp_path / "own", family=own)


def test_noise_is_added_in_training_alone_and_follows_from_the_step() -> None:
    one, made = batch(), network("eagle3")
    plain, noisy = EagleObjective(steps=2), EagleObjective(steps=2, noise=0.3)

    def loss(objective: EagleObjective, step: int = 0) -> float:
        return float(objective.scores(made, replace(one, step=step))[0].loss.detach())

    assert loss(noisy) == loss(noisy) != loss(plain)
    assert loss(noisy, 1) != loss(noisy)
    with torch.no_grad():
        assert loss(noisy) == loss(plain)


@pytest.mark.parametrize("tied", [True, False])
def test_a_written_checkpoint_is_the_model_it_was_written_from(tied: bool, tmp_path: Path) -> None:
    base = tiny_target(tmp_path, tie_word_embeddings=tied, name="base")
    config = read_config(base)
    weights = read_weights(base, config, torch.float32)
    write_checkpoint(base, tmp_path / "copy", config, weights)
    tokens = np.array([3, 5, 8, 13, 21])
    assert torch.equal(logits(tmp_path / "copy", tokens), logits(base, tokens))
    assert tokenizer_digest(tmp_path / "copy") == tokenizer_digest(base)
    with pytest.raises(InvalidArgument, match="out"):
        write_checkpoint(base, base, config, weights)


def test_a_draft_of_all_layers_is_the_target(target: Path) -> None:
    read = Target.read(target, EOS)
    draft = DraftNetwork(read.config, read.weights, range(3), frozen().head)
    tokens = np.array([3, 5, 8, 13, 21])
    with torch.no_grad():
        rows = draft(torch.from_numpy(tokens))
        expected = LoraBackbone(read.config, read.weights, rank=1)(torch.from_numpy(tokens), [(0, 5)], adapted=False)
    assert torch.allclose(rows, expected, atol=1e-4)
    for wrong in ((), (1, 0), (0, 3)):
        with pytest.raises(InvalidArgument, match="layers"):
            DraftNetwork(read.config, read.weights, wrong, frozen().head)


def test_a_distilled_draft_is_a_checkpoint_that_learnt(data, target: Path, tmp_path: Path) -> None:
    plan = DraftPlan((0, 2), 60, replace(RECIPE, token_budget=1500, learning_rate=1e-2, report_every=12))
    rows: list[Figures] = []
    reports = replace(QUIET, row=lambda figures, budget: rows.append(figures))
    last = train_draft(plan, data, target, tmp_path / "draft", **{**OPTIONS, "reports": reports})
    assert last.loss < 0.9 * rows[0].loss
    assert read_config(tmp_path / "draft").num_layers == 2
    tokens = next(data[0].conversations()).tokens.astype(np.int64)
    assert logits(tmp_path / "draft", tokens).shape == (len(tokens), 97)
    facts = json.loads((tmp_path / "draft" / "training.json").read_text())
    assert facts["layers"] == [0, 2]
    assert facts["target_digest"] == digest(target)
    # A run whose budget is spent is packed again, not trained again.
    again = digest(tmp_path / "draft")
    train_draft(plan, data, target, tmp_path / "draft", **OPTIONS)
    assert digest(tmp_path / "draft") == again


@pytest.fixture(scope="module")
def medusa2(data, target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("medusa2")
    plan = Medusa2Plan(HeadPlan(recipe_of("medusa", depth=2), 60, RECIPE), Medusa2Recipe(warm_up=2), rank=2)
    last = train_medusa2(plan, data, target, out, target_name="tiny", **OPTIONS)
    assert len(last.accuracy) == 3
    return out


def test_a_medusa_2_package_carries_its_adapter_and_is_no_head_of_the_base(medusa2: Path, target: Path) -> None:
    manifest = read_manifest(medusa2)
    assert manifest.family == "medusa2"
    assert manifest.training["rank"] == 2
    with pytest.raises(FailedPrecondition, match=r"head\.adapter"):
        load_head(medusa2, target, tokenizer_digest=tokenizer_digest(target), eos_ids=EOS)


def test_a_medusa_2_head_without_its_adapter_is_refused(medusa2: Path, target: Path, tmp_path: Path) -> None:
    bind(medusa2, target, tmp_path, eos_ids=EOS)
    heads = package.load(
        tmp_path / "head",
        {f"heads.{index}.{name}": shape for index in range(2) for name, shape in SHAPES.items()},
        target_digest=digest(tmp_path / "target"),
        tokenizer_digest=tokenizer_digest(target),
        eos_ids=EOS,
    )
    alone = replace(heads.manifest, family="medusa2")
    with pytest.raises(InvalidArgument, match=r"head\.adapter"):
        package.save(tmp_path / "alone", alone, heads.tensors, heads.vocabulary)


SHAPES = {"weight": (1, 32, 32), "bias": (1, 32)}


def test_a_bound_medusa_2_target_is_the_trained_backbone_and_loads_its_heads(
    medusa2: Path, target: Path, tmp_path: Path
) -> None:
    bind(medusa2, target, tmp_path, eos_ids=EOS)
    bound = tmp_path / "target"
    loaded = load_head(tmp_path / "head", bound, tokenizer_digest=tokenizer_digest(bound), eos_ids=EOS)
    assert loaded.manifest.family == "medusa"
    with pytest.raises(FailedPrecondition, match="target_digest"):
        load_head(tmp_path / "head", target, tokenizer_digest=tokenizer_digest(target), eos_ids=EOS)
    tokens = np.array([3, 5, 8, 13, 21])
    assert not torch.equal(logits(bound, tokens), logits(target, tokens))
    with pytest.raises(InvalidArgument, match=r"head\.family"):
        bind(tmp_path / "head", bound, tmp_path / "again", eos_ids=EOS)
