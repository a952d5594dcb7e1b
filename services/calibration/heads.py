"""Several sources over one loaded draft head: the same drafter under different trees, as `drafts.py` has it."""

from __future__ import annotations

from contracts.errors import FailedPrecondition, InvalidArgument
from contracts.topology import SamplingRelation
from proposer.heads.source import HeadSettings, HeadSource
from proposer.hidden_store import HiddenStore
from proposer.topology.plan import GrownByValue, TreePlan
from services.calibration.drafts import LARGEST
from services.drafting import drafting_of
from services.proposer_service.head import NAME, load_served
from services.settings import ProposerSettings


class Heads:
    """Loads the head of the settings once. hidden: the store that the host of its sources feeds. Raises FailedPrecondition
    where the settings name none, and as loading it does."""

    def __init__(self, settings: ProposerSettings) -> None:
        if not settings.head:
            raise FailedPrecondition("head", "none is set")
        self._loaded, self.hidden = load_served(settings)
        self._drafting = drafting_of(settings)

    @property
    def digest(self) -> str:
        """Digest of the head's weights: what calibrations call the drafter."""
        return self._loaded.manifest.weights_sha256

    @property
    def drafting(self) -> str:
        """What it drafts with here."""
        return self._drafting

    def check_depth(self, depth: int) -> None:
        """Raises InvalidArgument for more levels than the head drafts: those beyond would be counted as never tried."""
        deepest = self._loaded.head.max_depth
        if deepest is not None and depth > deepest:
            raise InvalidArgument("depth", f"{depth} levels, this {self._loaded.manifest.family} head drafts {deepest}")

    def source(self, relation: SamplingRelation, tree: TreePlan | GrownByValue, *, name: str = NAME) -> HeadSource:
        """One source. The largest offer is left to the round's budget."""
        settings = HeadSettings(relation=relation, tree=tree, max_nodes=LARGEST)
        return HeadSource(self._loaded, self.hidden.of(self._loaded.head.taps), settings, name=name)


def hidden_of(drafts: object) -> HiddenStore | None:
    """The store of hidden rows that these sources read, where they read any."""
    return drafts.hidden if isinstance(drafts, Heads) else None
