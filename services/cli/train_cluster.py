"""The options with which a training command hands its steps to a Ray cluster."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from contracts.errors import InvalidArgument

if TYPE_CHECKING:
    from proposer.training.gradients import GradientsOf

Ray = Annotated[str, typer.Option(help="A Ray cluster: local, auto or host:port. Empty: this process.")]
Workers = Annotated[int, typer.Option(min=0, help="With --ray: actors that share each step; 0: two.")]


def check_workers(ray: str, workers: int) -> None:
    """Raises InvalidArgument for actors without a cluster."""
    if workers and not ray:
        raise InvalidArgument("workers", f"{workers} actors need a cluster: give --ray")


def steps_over(stack: ExitStack, ray: str, workers: int) -> GradientsOf | None:
    """Steps over actors of the cluster `ray`, connected until `stack` ends; None, this process, where none is named."""
    if not ray:
        return None
    from services.jobs.ray_cluster import ray_cluster
    from services.jobs.train_steps import on_actors

    return on_actors(stack.enter_context(ray_cluster(ray)), workers or 2)
