"""One head from a data set to a package: vocabulary, network, warm start, loop, plots, manifest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from contracts.errors import InvalidArgument
from models.checkpoint import digest, tokenizer_digest
from proposer.heads import package
from proposer.heads.eagle import EagleNetwork
from proposer.heads.families import package_shapes
from proposer.heads.package import HeadManifest, HeadPackage
from proposer.training import plots
from proposer.training.dataset import Dataset
from proposer.training.gradients import GradientsOf
from proposer.training.loop import Figures, Recipe, Trainer
from proposer.training.orders import HeadOrder
from proposer.training.prepared import Corpus, Reports, Target
from proposer.training.recipes import FamilyRecipe
from proposer.training.run_state import RunState, identity_of
from proposer.training.warm_start import warm_start


@dataclass(frozen=True)
class HeadPlan:
    """What to train: the family's recipe, the draft vocabulary's size, the run's budget and pace. prompts: the prompts'
    tokens are labels too, but for what all of them begin with. start: a package of the same sizes to go on from, None for a
    new head; the draft vocabulary has all of its tokens, and more where the head reads the target's own vocabulary rows."""

    family: FamilyRecipe
    vocabulary: int
    recipe: Recipe
    prompts: bool = False
    start: Path | None = None


def train_head(
    plan: HeadPlan,
    data: Sequence[Dataset],
    checkpoint: Path,
    out: Path,
    *,
    target_name: str,
    eos_ids: Sequence[int],
    command: str,
    reports: Reports,
    gradients_of: GradientsOf | None = None,
) -> Figures:
    """Train and write the package to `out`; an interrupted run with the same `out` goes on from `out/state.pt`.

    gradients_of: who computes the steps' gradients of a network; None: this process. Everything the manifest's `training`
    names is what this run really used. Returns the last figures. Raises as `package.load` does where `plan.start` is no
    package of this plan's sizes and target.
    """
    torch.manual_seed(plan.recipe.seed)
    family, target = plan.family, Target.read(checkpoint, eos_ids)
    corpus = Corpus.read(data, family.taps)
    out.mkdir(parents=True, exist_ok=True)
    start = None if plan.start is None else _start(plan, plan.start, target, target_name)
    known = [] if start is None else start.vocabulary.ids.tolist()
    vocabulary = corpus.vocabulary(plan.vocabulary, target, known)
    identity = identity_of("head", target, corpus, vocabulary, plan.recipe, **plan_options(plan, start))
    state = RunState(out, identity, vocabulary)
    spent = state.spent(plan.recipe.token_budget)
    kept, held_out = corpus.examples(
        target, vocabulary, reports.step, prompts=plan.prompts, own=family.own, spent=spent
    )
    manifest = manifest_of(plan, target, target_name, len(vocabulary))
    order = HeadOrder(manifest, target.frozen, vocabulary, family)
    learning = order.build()
    network = learning.network
    if start is not None:
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                parameter.copy_(start.tensors[name])
    elif isinstance(network, EagleNetwork) and state.loaded is None:
        warm_start(network, target.weights, kept)
    gradients = gradients_of and gradients_of(network, order)
    trainer = Trainer(learning, plan.recipe, state=state, gradients=gradients)
    last = trainer.run(kept, held_out, reports.row)
    plots.write_csv(trainer.history, out / "figures.csv")
    plots.write_plots(trainer.history, out, family.family)
    facts = (
        {"command": command, "prompt_labels": plan.prompts, "objective": family.objective}
        | {"noise": family.noise, "own_tokens": family.own}
        | {
            "adopted_state": state.adopted,
            "started_from": None if start is None else start.manifest.weights_sha256,
            "before": _before(start),
        }
        | corpus.facts(held_out, vocabulary)
        | run_facts(plan.recipe, last)
    )
    package.save(out, replace(manifest, training=facts), dict(network.named_parameters()), vocabulary)
    return last


def plan_options(plan: HeadPlan, start: HeadPackage | None) -> dict[str, Any]:
    """What of a plan is part of the run's identity beside its recipe, its data and its vocabulary."""
    family = {item.name: getattr(plan.family, item.name) for item in fields(plan.family) if item.name != "scores"}
    if not family["own"]:
        # Runs that were begun before there were such labels go on.
        del family["own"]
    return {
        **family,
        "vocabulary_size": plan.vocabulary,
        "prompts": plan.prompts,
        "start": None if start is None else start.manifest.weights_sha256,
    }


# What a run's record keeps of the runs before it: enough to make each again, and to tell whether that was done.
_KEPT = (
    "command",
    "started_from",
    "objective",
    "noise",
    "own_tokens",
    "prompt_labels",
    "data",
    "data_digest",
    "data_record",
    "recipe",
    "steps",
    "tokens",
    "conversations",
    "answer_tokens",
    "loss",
    "held_out_accuracy",
)


def _before(start: HeadPackage | None) -> list[Any]:
    """The records of the runs that made what a run started from, in their order. Packages made before records were kept
    have commands alone, as texts."""
    if start is None:
        return []
    facts = start.manifest.training
    record = {name: facts[name] for name in _KEPT if name in facts}
    return [*facts.get("before", []), {"weights_sha256": start.manifest.weights_sha256, **record}]


def run_facts(recipe: Recipe, last: Figures) -> dict[str, Any]:
    """What a manifest says of the run."""
    return {
        "recipe": asdict(recipe),
        "steps": last.step,
        "tokens": last.tokens,
        "seconds": round(last.seconds),
        "loss": None if math.isnan(last.loss) else last.loss,
        "held_out_accuracy": last.held_out,
    }


def manifest_of(plan: HeadPlan, target: Target, target_name: str, draft_size: int) -> HeadManifest:
    """The manifest of a package that is not written yet: its digests of files are empty."""
    family = plan.family
    return HeadManifest(
        family=family.family,
        offsets=(2,) if family.recurrent else tuple(range(2, family.depth + 2)),
        depth=0 if family.recurrent else family.depth,
        projection=family.projection,
        taps=family.taps,
        shape=family.shape,
        target=target_name,
        target_digest=digest(target.checkpoint),
        tokenizer_digest=tokenizer_digest(target.checkpoint),
        vocabulary_size=draft_size,
        target_vocabulary_size=target.config.vocab_size,
        vocabulary_sha256="",
        eos_ids=target.eos_ids,
    )


def _start(plan: HeadPlan, directory: Path, target: Target, target_name: str) -> HeadPackage:
    found = package.read_manifest(directory)
    size = found.vocabulary_size
    if size > plan.vocabulary or (size < plan.vocabulary and plan.family.projection == "own"):
        raise InvalidArgument("vocabulary", f"{plan.vocabulary}, the package to start from has {size} tokens")
    manifest = manifest_of(plan, target, target_name, size)
    # Tensors of the same names and shapes mean something else under each of these.
    for name in ("family", "taps", "projection", "shape", "depth", "offsets"):
        mine, theirs = getattr(manifest, name), getattr(found, name)
        if mine != theirs:
            raise InvalidArgument(name, f"{mine!r}, the package to start from has {theirs!r}")
    return package.load(
        directory,
        package_shapes(manifest, target.frozen),
        target_digest=manifest.target_digest,
        tokenizer_digest=manifest.tokenizer_digest,
        eos_ids=target.eos_ids,
    )
