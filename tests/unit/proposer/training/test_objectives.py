"""What each family's loss reads, skips and weighs; who gets a gradient; what a run resumes."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from contracts.errors import InvalidArgument
from proposer.heads.package import ADAPTER
from proposer.training import losses, plots
from proposer.training.corpus import groups, pack, split, token_counts
from proposer.training.eagle import EagleObjective
from proposer.training.futures import FutureObjective
from proposer.training.gradients import Learning
from proposer.training.loop import Figures, Recipe, Trainer, evaluate
from proposer.training.lora import LoraBackbone, merged
from proposer.training.medusa2 import Medusa2Network, Medusa2Objective, Medusa2Recipe
from proposer.training.recipes import recipe_of
from proposer.training.run_state import RunState
from proposer.training.warm_start import warm_start
from tests.unit.proposer.heads.tiny_heads import CONFIG, HIDDEN, VOCAB, VOCABULARY, frozen, network
from tests.unit.proposer.training.tiny_corpus import batch, conversations, examples
from tests.unit.proposer.training.tiny_weights import target_weights

RECIPES = ("medusa", "medusa-own", "hydra", "hydra++", "clover", "eagle", "eagle3")


def scores_of(family: str, one):
    return recipe_of(family, depth=3).scores(network(family), one)


@pytest.mark.parametrize("family", RECIPES)
def test_every_depth_counts_the_labels_it_owns(family: str) -> None:
    """Conversations of 12, 9 and 20 tokens whose answers begin at 4: every owned token that the depth's row can reach."""
    one = batch()
    scores = scores_of(family, one)
    if family.startswith("eagle"):
        # A step at depth k starts from rows before the answer's k-th token: earlier answer tokens are its inputs.
        assert [score.rows for score in scores] == [(8 + 5 + 16) - 3 * k for k in range(3)]
    else:
        assert [score.rows for score in scores] == [8 + 5 + 16] * 2 + [8 + 5 + 16]
    assert all(torch.isfinite(score.loss) for score in scores)


@pytest.mark.parametrize("family", RECIPES)
def test_a_depth_without_labels_is_skipped(family: str) -> None:
    short = batch(lengths=(4, 3), answer_start=2)
    scores = scores_of(family, short)
    reached = [score.rows for score in scores]
    assert reached[0] == 3
    assert reached[-1] == 0 or family.startswith("eagle")
    total = torch.stack([score.loss for score in scores if score.rows]).sum()
    total.backward()
    assert math.isfinite(total.item())


@pytest.mark.parametrize("family", RECIPES)
def test_segments_do_not_see_each_other(family: str) -> None:
    """A batch's loss sums are those of its conversations alone."""
    one, parts = batch(), [pack([example], VOCABULARY) for example in examples()]
    whole = scores_of(family, one)
    for depth, score in enumerate(whole):
        alone = [scores_of(family, part) for part in parts]
        rows = [scores[depth].rows for scores in alone]
        mean = sum(scores[depth].loss.item() * count for scores, count in zip(alone, rows, strict=True)) / sum(rows)
        assert score.loss.item() == pytest.approx(mean, rel=1e-4)
        assert score.hits == sum(scores[depth].hits for scores in alone)


@pytest.mark.parametrize("family", RECIPES)
def test_only_the_heads_own_parameters_learn(family: str) -> None:
    made = network(family)
    total = torch.stack([score.loss for score in recipe_of(family, depth=3).scores(made, batch())]).sum()
    total.backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in made.parameters())
    assert not any(buffer.requires_grad for buffer in made.buffers())


@pytest.mark.parametrize("family", RECIPES)
def test_a_few_steps_lower_the_loss(family: str) -> None:
    made, recipe = network(family), recipe_of(family, depth=3)
    before = sum(score.loss.item() for score in recipe.scores(made, batch()))
    run = Recipe(token_budget=900, batch_tokens=30, learning_rate=5e-3, report_every=10)
    trainer = Trainer(Learning(made, partial(recipe.scores, made), VOCABULARY), run)
    last = trainer.run(examples(), examples(), lambda figures, budget: None)
    after = sum(score.loss.item() for score in recipe.scores(made, batch()))
    assert after < 0.8 * before
    assert last.tokens >= 900
    assert len(last.held_out) == 3


def test_medusa_depths_are_weighed_by_powers_of_the_decay() -> None:
    plain, weighed = FutureObjective(decay=1.0), FutureObjective(decay=0.8)
    made = network("medusa")
    ratios = [
        (b.loss / a.loss).item()
        for a, b in zip(plain.medusa(made, batch()), weighed.medusa(made, batch()), strict=True)
    ]
    assert ratios == pytest.approx([0.8, 0.64, 0.512], rel=1e-5)


def test_losses_without_labels_are_zero_and_not_nan() -> None:
    logits = torch.randn(3, 5, requires_grad=True)
    nothing = torch.full((3,), -1)
    for loss in (
        losses.hard(logits, nothing),
        losses.teacher(logits, nothing, torch.zeros(3, 2, dtype=torch.int64), torch.ones(3, 2)),
        losses.feature(torch.zeros(0, 4, requires_grad=True), torch.zeros(0, 4)),
    ):
        assert loss.item() == 0.0
        loss.backward()


def test_the_teachers_loss_is_least_at_the_teachers_law() -> None:
    law = torch.tensor([[0.5, 0.3, 0.2]])
    ids, labels = torch.tensor([[2, 0, 1]]), torch.tensor([2])
    logits = torch.log(torch.tensor([[0.3, 0.2, 0.5]]))
    best = float(losses.teacher(logits, labels, ids, law))
    assert best == pytest.approx(float(-(law * law.log()).sum()), rel=1e-5)
    assert float(losses.teacher(logits + torch.tensor([[0.5, 0.0, 0.0]]), labels, ids, law)) > best


def test_soft_labels_are_the_law_of_the_row_that_predicts_them() -> None:
    one = batch()
    head = frozen().rows(VOCABULARY)
    for (start, stop), answer in zip(one.bounds, one.label_starts, strict=True):
        for row in range(answer - 1, stop - 1):
            law = torch.softmax(one.hidden["final_norm"][row] @ head.T, dim=0)
            best = int(law.argmax())
            assert int(one.teacher_ids[row, 0]) == best
            assert float(one.teacher_probs[row, 0]) == pytest.approx(float(law[best]), abs=1e-3)
        assert start < answer


@pytest.mark.parametrize("family", ["eagle", "eagle3"])
def test_the_warm_start_is_the_least_squares_map_with_the_layer_turned_down(family: str) -> None:
    made = network(family)
    warm_start(made, target_weights(), examples())
    one = batch(lengths=(30,))
    rows = {tap: value[:-1] for tap, value in one.hidden.items()}
    fused = made.fused(made.real(rows), one.stream.tokens[1:])
    positions = torch.arange(len(fused))
    layer = made.layer
    added = layer.finish(fused, layer.attend(layer.queries(fused, positions), layer.keys(fused, positions), 1)) - fused
    assert 0.02 < float(added.detach().square().mean().sqrt()) < 0.4
    assert torch.equal(made.norm.detach(), torch.ones(HIDDEN))


def test_feature_loss_belongs_to_eagle_alone() -> None:
    one = batch()
    made = network("eagle")
    with_features = EagleObjective(steps=1, feature_weight=1.0).scores(made, one)[0]
    without = EagleObjective(steps=1).scores(made, one)[0]
    assert with_features.loss.item() > without.loss.item()
    scaled = replace(one, hidden={tap: 2 * rows for tap, rows in one.hidden.items()})
    eagle3 = EagleObjective(steps=1).scores(network("eagle3"), one)[0]
    assert EagleObjective(steps=1).scores(network("eagle3"), scaled)[0].loss.item() == pytest.approx(
        eagle3.loss.item(), rel=1e-3
    )


def trained(state: Path | None, budget: int, seen: list[Figures]) -> dict[str, torch.Tensor]:
    made, recipe = network("eagle"), recipe_of("eagle", depth=2)
    run = Recipe(token_budget=budget, batch_tokens=16, report_every=2)
    learning = Learning(made, partial(recipe.scores, made), VOCABULARY)
    trainer = Trainer(learning, run, state=state and RunState(state.parent, {"run": "test"}, VOCABULARY))

    def report(figures: Figures, total: int) -> None:
        seen.append(figures)
        if len(seen) == 2 and state is not None and not state.with_suffix(".second").exists():
            trainer._save()
            state.with_suffix(".second").touch()
            raise KeyboardInterrupt

    trainer.run(examples(), [], report)
    return {name: value.detach().clone() for name, value in made.named_parameters()}


def test_an_interrupted_run_ends_as_an_unbroken_one(tmp_path: Path) -> None:
    unbroken = trained(None, 200, [])
    state = tmp_path / "state.pt"
    with pytest.raises(KeyboardInterrupt):
        trained(state, 200, [])
    figures: list[Figures] = []
    resumed = trained(state, 200, figures)
    assert figures[0].step == 6
    for name, value in unbroken.items():
        assert torch.allclose(resumed[name], value, atol=1e-6)


def test_batches_cover_every_example_once_an_epoch_and_hold_outs_are_stable() -> None:
    every = examples(lengths=(9, 10, 11, 12, 13, 14))
    packed = list(groups(every, label_tokens=14, seed=1))
    assert sum(len(one) for one in packed) == 6
    assert [len(one[0].tokens) for one in packed] != [
        len(one[0].tokens) for one in groups(every, label_tokens=14, seed=2)
    ]
    kept, held = split([replace(conversations()[0], name=f"n{index}") for index in range(500)])
    assert len(held) == pytest.approx(20, abs=12)
    assert not {one.name for one in kept} & {one.name for one in held}
    assert sum(token_counts(conversations()).values()) == 12 + 9 + 20


def test_last_tokens_have_no_row_and_prompts_own_no_label() -> None:
    one = batch()
    for (start, stop), answer in zip(one.bounds, one.label_starts, strict=True):
        assert not one.stream.valid[stop - 1]
        assert torch.equal(one.hidden["final_norm"][stop - 1], torch.zeros(HIDDEN))
        assert not one.stream.owned[start:answer].any()
        assert one.stream.owned[answer:stop].all()


def medusa2(recipe: Medusa2Recipe) -> tuple[Medusa2Network, Medusa2Objective]:
    torch.manual_seed(0)
    made = Medusa2Network(network("medusa"), LoraBackbone(CONFIG, target_weights(), rank=2))
    return made, Medusa2Objective(recipe)


def gradients(made: Medusa2Network, objective: Medusa2Objective, one) -> tuple[bool, bool]:
    """Whether heads and backbone got any."""
    made.zero_grad(set_to_none=True)
    torch.stack([score.loss for score in objective.scores(made, one) if score.rows]).sum().backward()
    return tuple(
        any(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in part.parameters())
        for part in (made.heads, made.backbone)
    )


def test_medusa_2_trains_heads_alone_first_then_both_and_keeps_the_backbones_law() -> None:
    made, objective = medusa2(Medusa2Recipe(warm_up=2))
    one = batch()
    reached = [gradients(made, objective, replace(one, step=step)) for step in range(3)]
    assert reached == [(True, False), (True, False), (True, True)]
    one = replace(one, step=2)
    first = objective.scores(made, one)[0]
    assert first.loss.item() == pytest.approx(0.0, abs=1e-5)
    with torch.no_grad():
        for value in made.backbone.b.values():
            value.add_(0.1)
    assert objective.scores(made, one)[0].loss.item() > 1e-3


def test_direct_medusa_2_keeps_the_ordinary_next_token_loss() -> None:
    made, objective = medusa2(Medusa2Recipe(warm_up=0, distil=False))
    one = batch()
    scores = objective.scores(made, one)
    rows = made.backbone(one.stream.tokens, one.bounds, adapted=False)
    owned = one.stream.owned.nonzero().flatten()
    expected = torch.nn.functional.cross_entropy(made.backbone.logits(rows[owned - 1]), one.stream.tokens[owned])
    assert scores[0].loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert len(scores) == 4


def test_medusa_2s_groups_have_two_learning_rates() -> None:
    recipe = Medusa2Recipe()
    made, objective = medusa2(recipe)
    learning = Learning(made, partial(objective.scores, made), VOCABULARY)
    trainer = Trainer(learning, Recipe(token_budget=1), rate_of=recipe.rate_of)
    rates = {group["rate"] for group in trainer._optimizer.param_groups}
    assert rates == {1.0, 0.25}
    with pytest.raises(InvalidArgument, match="backbone_rate"):
        Medusa2Recipe(head_rate=0.1, backbone_rate=0.1)


def test_the_adapter_merges_into_the_backbone_it_was_trained_as() -> None:
    made, _ = medusa2(Medusa2Recipe())
    backbone, one = made.backbone, batch()
    with torch.no_grad():
        for value in backbone.b.values():
            value.copy_(torch.randn_like(value) * 0.1)
        adapter = {name: value.detach() for name, value in backbone.adapter().items()}
        student = backbone(one.stream.tokens, one.bounds, adapted=True)
        changed = LoraBackbone(CONFIG, merged(target_weights(), adapter), rank=2)
        assert torch.allclose(changed(one.stream.tokens, one.bounds, adapted=False), student, atol=1e-4)
        assert not torch.allclose(backbone(one.stream.tokens, one.bounds, adapted=False), student, atol=1e-2)
    assert all(name.startswith(ADAPTER) for name in adapter)
    incomplete = dict(list(adapter.items())[1:])
    with pytest.raises(InvalidArgument, match="cover"):
        merged(target_weights(), incomplete)


def test_plots_and_tables_hold_every_row(tmp_path: Path) -> None:
    rows = [Figures(10 * k, 100 * k, 1.0 * k, 3.0 / k, [0.1 * k, 0.05 * k], [0.2] if k == 2 else []) for k in (1, 2, 3)]
    plots.write_csv(rows, tmp_path / "figures.csv")
    lines = (tmp_path / "figures.csv").read_text().splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("step,tokens,seconds,loss,accuracy_1,accuracy_2")
    plots.write_plots(rows, tmp_path, "a < b & c")
    for name, curves in (("loss", 1), ("accuracy", 2)):
        text = (tmp_path / f"{name}.svg").read_text()
        assert text.count("<polyline") == curves
        assert "a &lt; b &amp; c" in text
    ends = [len(line.split(",")) for line in lines]
    assert all(a == b for a, b in pairwise(ends))


def test_expected_tokens_of_a_chain() -> None:
    assert Figures(1, 1, 1.0, 1.0, [0.5, 0.5]).expected_tokens == pytest.approx(1.75)
    assert Figures(1, 1, 1.0, 1.0, [0.9], [0.5]).expected_tokens == pytest.approx(1.5)


def test_evaluation_leaves_no_gradient_behind() -> None:
    made, recipe = network("eagle"), recipe_of("eagle", depth=2)
    accuracy = evaluate(partial(recipe.scores, made), examples(), VOCABULARY)
    assert len(accuracy) == 2
    assert all(parameter.grad is None for parameter in made.parameters())
    assert np.all(np.array(accuracy) <= 1.0)
    assert len(VOCABULARY) < VOCAB
