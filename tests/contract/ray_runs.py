"""Small runs of each kind of training, for one process and for a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from proposer.training.dataset import Dataset
from proposer.training.gradients import GradientsOf
from proposer.training.loop import Figures, Recipe
from proposer.training.medusa2 import Medusa2Recipe
from proposer.training.recipes import recipe_of
from proposer.training.run import HeadPlan, train_head
from proposer.training.run_draft import DraftPlan, train_draft
from proposer.training.run_medusa2 import Medusa2Plan, train_medusa2
from proposer.training.run_state import STATE
from tests.unit.proposer.training.tiny_data import EOS, QUIET

RECIPE = Recipe(token_budget=200, batch_tokens=40, learning_rate=3e-3, report_every=2)
# One more than a row: a run that is gone on with from its first row is in Medusa-2's first stage for one step yet.
WARM_UP = 3

Rows = Callable[[Figures, int], None]
Run = Callable[[Dataset, Path, Path, GradientsOf | None, Rows], Figures]


def eagle3(data: Dataset, target: Path, out: Path, gradients_of: GradientsOf | None, row: Rows) -> Figures:
    """With noise, which must be the same wherever a conversation is trained on."""
    family = recipe_of("eagle3", depth=2, inner=16, taps=("layer:0", "final_norm"), noise=0.2)
    plan = HeadPlan(family, 40, RECIPE)
    return train_head(plan, [data], target, out, target_name="tiny", gradients_of=gradients_of, **_told(row))


def medusa2(data: Dataset, target: Path, out: Path, gradients_of: GradientsOf | None, row: Rows) -> Figures:
    plan = Medusa2Plan(HeadPlan(recipe_of("medusa", depth=2), 60, RECIPE), Medusa2Recipe(warm_up=WARM_UP), rank=2)
    return train_medusa2(plan, [data], target, out, target_name="tiny", gradients_of=gradients_of, **_told(row))


def draft(data: Dataset, target: Path, out: Path, gradients_of: GradientsOf | None, row: Rows) -> Figures:
    plan = DraftPlan((0, 2), 60, RECIPE)
    return train_draft(plan, [data], target, out, gradients_of=gradients_of, **_told(row))


def _told(row: Rows) -> dict[str, Any]:
    return {"eos_ids": EOS, "command": "draftproof train", "reports": replace(QUIET, row=row)}


RUNS: dict[str, Run] = {"eagle3 with noise": eagle3, "medusa2": medusa2, "draft": draft}


class Interrupted(Exception):
    """A run was stopped where a person might have."""


def interrupt(figures: Figures, budget: int) -> None:
    """At the first row. It has been saved when the next one comes, so that it is at the second that a run must stop."""
    if figures.step >= 2 * RECIPE.report_every:
        raise Interrupted


def parameters(out: Path) -> dict[str, torch.Tensor]:
    """What a run in `out` came to."""
    found: dict[str, torch.Tensor] = torch.load(out / STATE, weights_only=True)["network"]
    return found
