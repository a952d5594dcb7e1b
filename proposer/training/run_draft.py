"""One draft model from a data set to a checkpoint directory: layers of the target, distilled."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from models.checkpoint import digest
from proposer.training import plots
from proposer.training.checkpoint_writer import write_checkpoint
from proposer.training.dataset import Dataset
from proposer.training.draft import DraftNetwork
from proposer.training.gradients import GradientsOf
from proposer.training.loop import Figures, Recipe, Trainer
from proposer.training.orders import DraftOrder
from proposer.training.prepared import Corpus, Reports, Target
from proposer.training.run import run_facts
from proposer.training.run_state import RunState, identity_of

TRAINING = "training.json"


@dataclass(frozen=True)
class DraftPlan:
    """layers: of the target, ascending, that the draft keeps. vocabulary: tokens that the loss is taken over."""

    layers: tuple[int, ...]
    vocabulary: int
    recipe: Recipe
    prompts: bool = True


def train_draft(
    plan: DraftPlan,
    data: Sequence[Dataset],
    checkpoint: Path,
    out: Path,
    *,
    eos_ids: Sequence[int],
    command: str,
    reports: Reports,
    gradients_of: GradientsOf | None = None,
) -> Figures:
    """Train and write to `out` a checkpoint that any loader reads, with `training.json` beside it; an interrupted run with
    the same `out` goes on from `out/state.pt`. gradients_of: as `train_head` has it. Returns the last figures, whose one
    depth is the draft's next token."""
    torch.manual_seed(plan.recipe.seed)
    target, corpus = Target.read(checkpoint, eos_ids), Corpus.read(data, ())
    out.mkdir(parents=True, exist_ok=True)
    vocabulary = corpus.vocabulary(plan.vocabulary, target)
    options = {"layers": plan.layers, "vocabulary_size": plan.vocabulary, "prompts": plan.prompts}
    state = RunState(out, identity_of("draft", target, corpus, vocabulary, plan.recipe, **options), vocabulary)
    spent = state.spent(plan.recipe.token_budget)
    kept, held_out = corpus.examples(target, vocabulary, reports.step, prompts=plan.prompts, spent=spent)
    order = DraftOrder(target.config, target.weights, plan.layers, target.frozen.rows(vocabulary), vocabulary)
    learning = order.build()
    network = learning.network
    assert isinstance(network, DraftNetwork)
    gradients = gradients_of and gradients_of(network, order)
    trainer = Trainer(learning, plan.recipe, state=state, gradients=gradients)
    last = trainer.run(kept, held_out, reports.row)
    plots.write_csv(trainer.history, out / "figures.csv")
    plots.write_plots(trainer.history, out, "draft")
    write_checkpoint(checkpoint, out, network.config, network.weights(torch.bfloat16))
    facts = (
        {
            "command": command,
            "adopted_state": state.adopted,
            "layers": list(plan.layers),
            "target_digest": digest(checkpoint),
        }
        | {"prompt_labels": plan.prompts, "objective": "teacher law and labels over the frequent tokens"}
        | corpus.facts(held_out, vocabulary)
        | run_facts(plan.recipe, last)
    )
    unfinished = out / (TRAINING + ".unfinished")
    unfinished.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(unfinished, out / TRAINING)
    return last
