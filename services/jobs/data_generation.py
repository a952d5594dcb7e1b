"""The driver of data generation on Ray: blocks of prompts out, conversations back, the same shards as one process writes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from contracts.errors import FailedPrecondition
from models.backend import BackendInfo
from proposer.training.blocks import Block, Finished, Produce
from proposer.training.generate import Conversation
from services.jobs.data_task import BlockDone, DataOrder, describe, run_block

TASKS_PER_CORE = 2


def target_on_ray(ray: Any, order: DataOrder) -> BackendInfo:
    """What the cluster's workers compute with, by one of them."""
    info: BackendInfo = ray.get(ray.remote(num_cpus=1, max_retries=3)(describe).remote(order))
    return info


def on_ray(ray: Any, order: DataOrder, target: BackendInfo) -> Produce:
    """Every block a task, a bounded number under way; blocks come back as they end.

    Raises FailedPrecondition where a node computes with something else than `target`: its conversations would be others.
    """

    def produce(blocks: Iterable[Block], finished: Finished) -> Iterator[tuple[Block, list[Conversation]]]:
        task = ray.remote(num_cpus=1, max_retries=3)(run_block)
        shared = ray.put(order)
        limit = max(1, TASKS_PER_CORE * int(ray.cluster_resources().get("CPU", os.cpu_count() or 1)))
        waiting = iter(blocks)
        running: dict[Any, Block] = {}
        while True:
            while len(running) < limit and (block := next(waiting, None)) is not None:
                running[task.remote(shared, block)] = block
            if not running:
                return
            (reference,), _ = ray.wait(list(running), num_returns=1)
            block, done = running.pop(reference), _checked(ray.get(reference), target)
            for conversation in done.conversations:
                finished(conversation)
            yield block, done.conversations

    return produce


def _checked(done: BlockDone, target: BackendInfo) -> BlockDone:
    if done.target != target:
        raise FailedPrecondition(
            "data.target",
            f"a node computes with {done.target.backend} {done.target.checkpoint_digest[:12]}, not {target}",
        )
    return done
