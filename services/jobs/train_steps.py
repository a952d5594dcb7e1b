"""Data-parallel training on Ray: each step's conversations are split over actors, their gradients added up by the driver.

The driver keeps parameters and optimizer; an actor has a copy of the network for its part. A step sends the parameters and
the part's conversations out and gradients back, so nodes need nothing but the code; the step is what one process would have
made of the whole batch, up to the order of additions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from proposer.heads.families import Frozen, network_of
from proposer.heads.package import HeadManifest
from proposer.heads.vocabulary import DraftVocabulary
from proposer.training.corpus import Example
from proposer.training.gradients import Measured, PartLearner, parts_of
from proposer.training.recipes import FamilyRecipe
from proposer.training.run import GradientsOf


@dataclass(frozen=True)
class LearnerOrder:
    """What an actor builds its copy of the network from."""

    manifest: HeadManifest
    frozen: Frozen
    vocabulary: DraftVocabulary
    family: FamilyRecipe


class Learner:
    """The actor: a `PartLearner` with a network of its own, on one core."""

    def __init__(self, order: LearnerOrder) -> None:
        torch.set_num_threads(1)
        network = network_of(order.manifest, order.frozen, order.vocabulary)
        self._learner = PartLearner(network, partial(order.family.scores, network), order.vocabulary)

    def forward(self, parameters: Sequence[Tensor], examples: Sequence[Example]) -> Measured:
        return self._learner.forward(parameters, examples)

    def backward(self, rows: Sequence[int]) -> list[Tensor]:
        return self._learner.backward(rows)


class RayGradients:
    """Implements Gradients over `workers` actors. Noise on inputs (`--noise`) is keyed by the batch, so that it differs from
    one process's; everything else is the same step."""

    def __init__(self, ray: Any, network: nn.Module, order: LearnerOrder, workers: int) -> None:
        self._ray, self._network = ray, network
        actor, shared = ray.remote(num_cpus=1)(Learner), ray.put(order)
        self._actors = [actor.remote(shared) for _ in range(workers)]

    def __call__(self, examples: Sequence[Example]) -> Measured:
        parts = parts_of(examples, len(self._actors))
        actors = self._actors[: len(parts)]
        parameters = self._ray.put([value.detach() for value in self._network.parameters()])
        measured: list[Measured] = self._ray.get(
            [actor.forward.remote(parameters, part) for actor, part in zip(actors, parts, strict=True)]
        )
        whole = Measured.joined(measured)
        gradients = self._ray.get([actor.backward.remote(whole.rows) for actor in actors])
        for index, own in enumerate(self._network.parameters()):
            # Copies: what Ray hands out is read-only.
            own.grad = torch.stack([torch.as_tensor(one[index]) for one in gradients]).sum(dim=0)
        return whole


def on_actors(ray: Any, family: FamilyRecipe, workers: int) -> GradientsOf:
    """Steps over `workers` actors of a connected cluster, for `train_head`."""

    def gradients(
        network: nn.Module, manifest: HeadManifest, frozen: Frozen, vocabulary: DraftVocabulary
    ) -> RayGradients:
        return RayGradients(ray, network, LearnerOrder(manifest, frozen, vocabulary, family), workers)

    return gradients
