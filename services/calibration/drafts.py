"""Several sources over one loaded draft model: the same drafter under different trees, side by side."""

from __future__ import annotations

import os

from contracts.errors import FailedPrecondition
from contracts.topology import SamplingRelation
from models.checkpoint import resolve, tokenizer_digest
from models.load import load_backend
from proposer.draft_model import DraftModel, DraftModelSettings
from proposer.topology.plan import GrownByValue, TreePlan
from services.checkpoint_files import eos_ids
from services.drafting import drafting_of
from services.settings import ProposerSettings, names_in

# Candidates of the largest offer that is calibrated or compared.
LARGEST = 128


class Drafts:
    """Loads the draft model of the settings once. Raises FailedPrecondition where they name none, or several."""

    def __init__(self, settings: ProposerSettings) -> None:
        named = len(names_in(settings.draft_model))
        if named != 1:
            raise FailedPrecondition("draft_model", f"{named} are set, one at a time is calibrated")
        self._drafting = drafting_of(settings)
        self._directory = resolve(settings.draft_model, settings.models_dir)
        self._backend = load_backend(
            self._directory,
            dtype=settings.draft_dtype,
            kv_budget_tokens=settings.draft_kv_tokens,
            threads=settings.draft_threads or len(os.sched_getaffinity(0)),
        )

    @property
    def digest(self) -> str:
        """Digest of the draft's weights: what calibrations call the drafter."""
        return self._backend.info.checkpoint_digest

    @property
    def drafting(self) -> str:
        """What it drafts with here."""
        return self._drafting

    def source(
        self, relation: SamplingRelation, tree: TreePlan | GrownByValue, *, name: str = "draft_model"
    ) -> DraftModel:
        """One source. The largest offer is left to the round's budget."""
        return DraftModel(
            self._backend,
            DraftModelSettings(relation, tree, max_nodes=LARGEST),
            name=name,
            tokenizer_digest=tokenizer_digest(self._directory),
            eos_ids=eos_ids(self._directory),
        )
