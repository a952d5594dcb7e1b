"""Data-parallel training on Ray, whatever is trained: each step's conversations are split over actors, their gradients added
up by the driver.

The driver keeps parameters and optimizer; an actor has a copy of the network for its part. A step sends the parameters and
the part's conversations out and gradients back, so nodes need nothing but the code; the step is what one process would have
made of the whole batch, up to the order of additions. An actor keeps nothing between steps: where one is lost, new ones take
the step again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from contracts.errors import InvalidArgument, Unavailable
from proposer.training.corpus import Example
from proposer.training.gradients import GradientsOf, LearnerOrder, Measured, PartLearner, added, parts_of

# Times that a step is taken before the loss of actors ends the run, which goes on from its state when called again.
_ATTEMPTS = 3


class Learner:
    """The actor: a `PartLearner` with a network of its own, on one core."""

    def __init__(self, order: LearnerOrder) -> None:
        torch.set_num_threads(1)
        self._learner = PartLearner(order.build())

    def forward(self, parameters: Sequence[Tensor], examples: Sequence[Example], step: int) -> Measured:
        return self._learner.forward(parameters, examples, step)

    def backward(self, rows: Sequence[int]) -> list[Tensor | None]:
        return self._learner.backward(rows)


class RayGradients:
    """Implements Gradients over `workers` actors. Raises Unavailable where a step loses its actors again and again."""

    def __init__(self, ray: Any, network: nn.Module, order: LearnerOrder, workers: int) -> None:
        self._ray, self._network, self._workers = ray, network, workers
        self._order = ray.put(order)
        self.actors = self._started()

    def __call__(self, examples: Sequence[Example], step: int) -> Measured:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._step(examples, step)
            except self._ray.exceptions.RayActorError as error:
                if attempt == _ATTEMPTS:
                    raise Unavailable("ray", f"step {step} lost its actors {_ATTEMPTS} times: {error}") from error
                for actor in self.actors:
                    self._ray.kill(actor)
                self.actors = self._started()
        raise AssertionError("unreachable")

    def _step(self, examples: Sequence[Example], step: int) -> Measured:
        parts = parts_of(examples, len(self.actors))
        actors = self.actors[: len(parts)]
        parameters = self._ray.put([value.detach() for value in self._network.parameters()])
        measured: list[Measured] = self._ray.get(
            [actor.forward.remote(parameters, part, step) for actor, part in zip(actors, parts, strict=True)]
        )
        whole = Measured.joined(measured)
        gradients = added(self._ray.get([actor.backward.remote(whole.rows) for actor in actors]))
        for own, gradient in zip(self._network.parameters(), gradients, strict=True):
            own.grad = gradient
        return whole

    def _started(self) -> list[Any]:
        actor = self._ray.remote(num_cpus=1)(Learner)
        return [actor.remote(self._order) for _ in range(self._workers)]


def on_actors(ray: Any, workers: int) -> GradientsOf:
    """Steps over `workers` actors of a connected cluster, for `train_head`, `train_medusa2` and `train_draft`.

    Raises InvalidArgument for more actors than the cluster has cores: the first step would wait for the last of them.
    """
    cores = int(ray.cluster_resources().get("CPU", 0))
    if workers > cores:
        raise InvalidArgument("workers", f"{workers} actors of one core each, the cluster has {cores} cores")

    def gradients(network: nn.Module, order: LearnerOrder) -> RayGradients:
        return RayGradients(ray, network, order, workers)

    return gradients
