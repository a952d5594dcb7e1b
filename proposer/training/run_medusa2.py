"""Medusa-2 from a data set to a package that carries its adapter, and from that package to a target that can be served.

A package made here is bound to the base checkpoint and refused for drafting against it: its heads read another backbone.
`bind` merges the adapter into a checkpoint of its own and writes heads bound to that one, which are ordinary Medusa heads of
an ordinary target from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from contracts.errors import InvalidArgument
from models.checkpoint import digest, tokenizer_digest
from models.config import read_config
from models.weights import read_weights
from proposer.heads import package
from proposer.heads.families import Frozen, package_shapes
from proposer.training import plots
from proposer.training.checkpoint_writer import write_checkpoint
from proposer.training.dataset import Dataset
from proposer.training.gradients import GradientsOf
from proposer.training.loop import Figures, Trainer
from proposer.training.lora import merged
from proposer.training.medusa2 import Medusa2Network, Medusa2Recipe
from proposer.training.orders import Medusa2Order
from proposer.training.prepared import Corpus, Reports, Target
from proposer.training.run import HeadPlan, manifest_of, plan_options, run_facts
from proposer.training.run_state import RunState, identity_of

TARGET, HEAD = "target", "head"


@dataclass(frozen=True)
class Medusa2Plan:
    """head: family (Medusa's), vocabulary and run as for heads alone. rank: of the adapter."""

    head: HeadPlan
    joint: Medusa2Recipe
    rank: int = 8


def train_medusa2(
    plan: Medusa2Plan,
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
    """Train heads and adapter together and write the package to `out`; an interrupted run goes on from `out/state.pt`.

    gradients_of: as `train_head` has it. The first depth of the figures is the backbone's own next token.
    Raises InvalidArgument for another family than Medusa.
    """
    head, recipe = plan.head, plan.head.recipe
    if head.family.family != "medusa":
        raise InvalidArgument("family", f"Medusa-2 trains Medusa's heads, not {head.family.family}'s")
    torch.manual_seed(recipe.seed)
    target, corpus = Target.read(checkpoint, eos_ids), Corpus.read(data, ())
    out.mkdir(parents=True, exist_ok=True)
    vocabulary = corpus.vocabulary(head.vocabulary, target)
    options = plan_options(head, None) | {"rank": plan.rank} | {f"joint.{k}": v for k, v in asdict(plan.joint).items()}
    state = RunState(out, identity_of("medusa2", target, corpus, vocabulary, recipe, **options), vocabulary)
    kept, held_out = corpus.examples(
        target, vocabulary, reports.step, prompts=False, spent=state.spent(recipe.token_budget)
    )
    manifest = manifest_of(head, target, target_name, len(vocabulary))
    order = Medusa2Order(manifest, target.frozen, target.weights, vocabulary, plan.rank, plan.joint)
    learning = order.build()
    network = learning.network
    assert isinstance(network, Medusa2Network)
    gradients = gradients_of and gradients_of(network, order)
    trainer = Trainer(learning, recipe, rate_of=plan.joint.rate_of, state=state, gradients=gradients)
    last = trainer.run(kept, held_out, reports.row)
    plots.write_csv(trainer.history, out / "figures.csv")
    plots.write_plots(trainer.history, out, "medusa2")
    keeps = "KL to the teacher (adapter off)" if plan.joint.distil else "LM loss"
    facts = (
        {
            "command": command,
            "adopted_state": state.adopted,
            "objective": f"{keeps} + {plan.joint.heads_weight} x hard labels",
            "rank": plan.rank,
        }
        | {"warm_up_batches": plan.joint.warm_up, "backbone_rate": plan.joint.backbone_rate}
        | corpus.facts(held_out, vocabulary)
        | run_facts(recipe, last)
    )
    tensors: dict[str, Tensor] = dict(network.heads.named_parameters())
    joint = replace(manifest, family="medusa2", shape={**manifest.shape, "rank": plan.rank}, training=facts)
    package.save(out, joint, tensors | network.backbone.adapter(), vocabulary)
    return last


def bind(directory: Path, checkpoint: Path, out: Path, *, eos_ids: Sequence[int]) -> None:
    """From the Medusa-2 package in `directory` and its base, which ends at `eos_ids`: `out/target`, the base with
    the adapter merged in, and `out/head`, the heads bound to it. Errors as `package.load`;
    InvalidArgument for a package without an adapter."""
    manifest = package.read_manifest(directory)
    if manifest.family != "medusa2":
        raise InvalidArgument(
            "head.family", f"{directory.name} is a {manifest.family} head: its target is the base itself"
        )
    config = read_config(checkpoint)
    weights = read_weights(checkpoint, config, torch.bfloat16)
    loaded = package.load(
        directory,
        package_shapes(manifest, Frozen.of(config, weights)),
        target_digest=digest(checkpoint),
        tokenizer_digest=tokenizer_digest(checkpoint),
        eos_ids=eos_ids,
    )
    write_checkpoint(checkpoint, out / TARGET, config, merged(weights, loaded.adapter))
    bound = replace(
        loaded.manifest,
        family="medusa",
        shape={name: size for name, size in loaded.manifest.shape.items() if name != "rank"},
        target=f"{manifest.target}+medusa2",
        target_digest=digest(out / TARGET),
        tokenizer_digest=tokenizer_digest(out / TARGET),
    )
    package.save(out / HEAD, bound, loaded.tensors, loaded.vocabulary)
