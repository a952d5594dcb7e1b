"""What the network of each kind of run is built from: heads, Medusa-2's heads with their backbone, a draft's layers.

Each is a `LearnerOrder`: the run builds its own network from it, and so does every process that computes a part of a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import Tensor

from models.config import DecoderConfig
from models.weights import DecoderWeights
from proposer.heads.families import Frozen, network_of
from proposer.heads.medusa import MedusaNetwork
from proposer.heads.package import HeadManifest
from proposer.heads.vocabulary import DraftVocabulary
from proposer.training.draft import DraftNetwork, DraftObjective
from proposer.training.gradients import Learning
from proposer.training.lora import LoraBackbone
from proposer.training.medusa2 import Medusa2Network, Medusa2Objective, Medusa2Recipe
from proposer.training.recipes import FamilyRecipe


@dataclass(frozen=True)
class HeadOrder:
    """Implements LearnerOrder for a head of any family."""

    manifest: HeadManifest
    frozen: Frozen
    vocabulary: DraftVocabulary
    family: FamilyRecipe

    def build(self) -> Learning:
        network = network_of(self.manifest, self.frozen, self.vocabulary)
        return Learning(network, partial(self.family.scores, network), self.vocabulary)


@dataclass(frozen=True)
class Medusa2Order:
    """Implements LearnerOrder for Medusa's heads and an adapter of `rank` over `weights`: a copy of the target a process."""

    manifest: HeadManifest
    frozen: Frozen
    weights: DecoderWeights
    vocabulary: DraftVocabulary
    rank: int
    recipe: Medusa2Recipe

    def build(self) -> Learning:
        heads = network_of(self.manifest, self.frozen, self.vocabulary)
        assert isinstance(heads, MedusaNetwork)
        network = Medusa2Network(heads, LoraBackbone(self.frozen.config, self.weights, self.rank))
        return Learning(network, partial(Medusa2Objective(self.recipe).scores, network), self.vocabulary)


@dataclass(frozen=True)
class DraftOrder:
    """Implements LearnerOrder for the draft of `layers` of the target. head: float32 [V', H], its rows of the vocabulary."""

    config: DecoderConfig
    weights: DecoderWeights
    layers: tuple[int, ...]
    head: Tensor
    vocabulary: DraftVocabulary

    def build(self) -> Learning:
        network = DraftNetwork(self.config, self.weights, self.layers, self.head)
        return Learning(network, partial(DraftObjective().scores, network), self.vocabulary)
