"""The draft models of the settings as sources, each with weights, KV and law of its own. Imports torch.

Several are SpecInfer's merged drafters (Miao et al., ASPLOS 2024, section 3): each expands a tree by its widths, the
orchestrator deals the budget before anything is drawn, and the round's graph is the union by full prefix with every draw
under its own drafter's law.
"""

from __future__ import annotations

import logging
import os

from contracts.errors import InvalidArgument
from contracts.topology import SamplingRelation
from models.checkpoint import resolve, tokenizer_digest
from models.load import load_backend
from proposer.draft_model import DraftModel, DraftModelSettings
from proposer.source import Source
from proposer.staged_draft import StagedDraft
from services.checkpoint_files import eos_ids
from services.drafting import drafting_of
from services.settings import ProposerSettings, names_in
from services.trees import tree_of

NAME = "draft_model"
_log = logging.getLogger(__name__)


def draft_names(count: int) -> list[str]:
    """What the sources are called: draft_model, draft_model_2, ..."""
    return [NAME, *(f"{NAME}_{number}" for number in range(2, count + 1))]


def build_drafts(settings: ProposerSettings) -> list[Source]:
    """One source a draft model, in the order of the settings.

    Raises InvalidArgument where the trees are neither one for all nor one each, and for staged drafting with a tree that is
    no chain; what refuses a checkpoint or a tree.
    """
    models = names_in(settings.draft_model)
    trees = settings.draft_tree.split(";")
    if len(trees) not in (1, len(models)):
        raise InvalidArgument("DRAFTPROOF_DRAFT_TREE", f"{len(trees)} trees for {len(models)} draft models")
    each = trees * len(models) if len(trees) == 1 else trees
    named = zip(models, each, draft_names(len(models)), strict=True)
    return [_draft(settings, model, tree.strip(), name) for model, tree, name in named]


def _draft(settings: ProposerSettings, model: str, tree: str, name: str) -> Source:
    directory = resolve(model, settings.models_dir, _log.info)
    backend = load_backend(
        directory,
        dtype=settings.draft_dtype,
        kv_budget_tokens=settings.draft_kv_tokens,
        threads=settings.draft_threads or len(os.sched_getaffinity(0)),
        packed_dir=settings.packed_dir,
    )
    kind = StagedDraft if settings.draft_staged else DraftModel
    return kind(
        backend,
        DraftModelSettings(SamplingRelation(settings.draft_relation), tree_of(tree, drafting=drafting_of(settings))),
        name=name,
        tokenizer_digest=tokenizer_digest(directory),
        eos_ids=eos_ids(directory),
    )
