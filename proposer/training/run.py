"""One head from a data set to a package: vocabulary, network, warm start, loop, plots, manifest."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from models.checkpoint import digest, tokenizer_digest
from models.config import read_config
from models.weights import read_weights
from proposer.heads import package
from proposer.heads.eagle import FINAL, EagleNetwork
from proposer.heads.families import Frozen, network_of
from proposer.heads.package import HeadManifest
from proposer.heads.vocabulary import DraftVocabulary, frequent
from proposer.training import plots
from proposer.training.corpus import Example, held_out_by_name, prepare, read_conversations, split, token_counts
from proposer.training.dataset import Dataset
from proposer.training.generate import Conversation
from proposer.training.loop import Figures, Recipe, Trainer
from proposer.training.recipes import FamilyRecipe
from proposer.training.warm_start import warm_start


@dataclass(frozen=True)
class HeadPlan:
    """What to train: the family's recipe, the draft vocabulary's size, the run's budget and pace."""

    family: FamilyRecipe
    vocabulary: int
    recipe: Recipe


@dataclass(frozen=True)
class Reports:
    """Called along the way: step(name, done, total) while data is prepared, row(figures, token budget) while training."""

    step: Callable[[str, int, int], None]
    row: Callable[[Figures, int], None]


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
) -> Figures:
    """Train and write the package to `out`; an interrupted run with the same `out` goes on from `out/state.pt`.

    Everything the manifest's `training` names is what this run really used. Returns the last figures.
    """
    torch.manual_seed(plan.recipe.seed)
    family = plan.family
    config = read_config(checkpoint)
    weights = read_weights(checkpoint, config, torch.bfloat16)
    frozen = Frozen(config, weights.embedding.float(), weights.head)
    conversations = read_conversations(data, sorted({FINAL, *family.taps}))
    out.mkdir(parents=True, exist_ok=True)
    vocabulary = _vocabulary(out / "vocabulary.json", conversations, plan.vocabulary, config.vocab_size, eos_ids)
    state = out / "state.pt"
    kept_raw = [one for one in conversations if not held_out_by_name(one.name)]
    # A run whose budget is spent is only packed: its examples would be made for nothing.
    spent = state.exists() and int(torch.load(state, weights_only=True)["tokens"]) >= plan.recipe.token_budget
    wanted = [one for one in conversations if held_out_by_name(one.name)] if spent else conversations
    examples = prepare(wanted, vocabulary, frozen.rows(vocabulary), progress=partial(reports.step, "soft labels"))
    kept, held_out = split(examples)
    manifest = _manifest(plan, target_name, checkpoint, config.vocab_size, len(vocabulary), eos_ids)
    network = network_of(manifest, frozen, vocabulary)
    if isinstance(network, EagleNetwork) and not state.exists():
        warm_start(network, weights, kept)
    trainer = Trainer(network, partial(family.scores, network), vocabulary, plan.recipe, state_path=state)
    last = trainer.run(kept, held_out, reports.row)
    plots.write_csv(trainer.history, out / "figures.csv")
    plots.write_plots(trainer.history, out, family.family)
    training_facts = {
        "command": command,
        "data": [dataset.digest for dataset in data],
        "data_identity": [dataset.identity for dataset in data],
        "conversations": len(kept_raw),
        "answer_tokens": sum(len(one.tokens) - one.answer_start for one in kept_raw),
        "vocabulary_coverage": _coverage(held_out, vocabulary),
        "objective": family.objective,
        "recipe": asdict(plan.recipe),
        "steps": last.step,
        "tokens": last.tokens,
        "seconds": round(last.seconds),
        "loss": None if math.isnan(last.loss) else last.loss,
        "held_out_accuracy": last.held_out,
    }
    package.save(out, replace(manifest, training=training_facts), dict(network.named_parameters()), vocabulary)
    return last


def _vocabulary(
    path: Path, conversations: Sequence[Conversation], size: int, target_size: int, eos_ids: Sequence[int]
) -> DraftVocabulary:
    """The frequent tokens of the training conversations, fixed at the run's first start: the state's rows mean them."""
    if path.exists():
        ids = np.array(json.loads(path.read_text(encoding="utf-8")), np.int64)
        return DraftVocabulary(ids, target_size=target_size, eos_ids=eos_ids)
    seen = [one for one in conversations if not held_out_by_name(one.name)]
    vocabulary = frequent(token_counts(seen), size, target_size=target_size, eos_ids=eos_ids)
    path.write_text(json.dumps(vocabulary.ids.tolist()), encoding="utf-8")
    return vocabulary


def _manifest(
    plan: HeadPlan, target: str, checkpoint: Path, vocab_size: int, draft_size: int, eos_ids: Sequence[int]
) -> HeadManifest:
    family = plan.family
    return HeadManifest(
        family=family.family,
        offsets=(2,) if family.recurrent else tuple(range(2, family.depth + 2)),
        depth=0 if family.recurrent else family.depth,
        projection=family.projection,
        taps=family.taps,
        shape=family.shape,
        target=target,
        target_digest=digest(checkpoint),
        tokenizer_digest=tokenizer_digest(checkpoint),
        vocabulary_size=draft_size,
        target_vocabulary_size=vocab_size,
        vocabulary_sha256="",
        eos_ids=tuple(eos_ids),
    )


def _coverage(examples: Sequence[Example], vocabulary: DraftVocabulary) -> float:
    """Share of the answers' tokens that the draft vocabulary has."""
    inside = total = 0
    for one in examples:
        answer = vocabulary.to_draft(one.tokens[one.answer_start :].numpy())
        inside += int((answer >= 0).sum())
        total += len(answer)
    return inside / total if total else 0.0
