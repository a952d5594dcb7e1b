"""The driver of an index build on Ray: units out, accounts back, the same release as the one-machine build.

It keeps a bounded number of tasks under way, renews the lease on what they brought in, and notes each finished unit, so
that a build that was cut off goes on where it stopped.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from retriever.build import Recipe, release_of
from retriever.build_notes import BuildNotes
from retriever.exclusion import NO_EXCLUSION, Exclusion
from retriever.publish import LEASE_MS
from retriever.sources import Unit
from retriever.store import ReleaseStore
from retriever.unit_result import BuildReport, UnitResult, build_report
from services.jobs.ray_cluster import ray_cluster
from services.jobs.unit_task import BuildOrder, UnitDone, UnitRefused, run_unit

RENEW_S = 60.0
TASKS_PER_CORE = 2
_TOKENIZER_FILE_LIMIT = 64 << 20


def tokenizer_files(checkpoint: Path) -> dict[str, bytes]:
    """The checkpoint's files without its weights: what a tokenizer needs, and what its digest is made of."""
    wanted = (".json", ".model", ".txt", ".jinja")
    return {
        path.name: path.read_bytes()
        for path in sorted(checkpoint.iterdir())
        if path.suffix in wanted and not path.name.startswith(".") and path.stat().st_size <= _TOKENIZER_FILE_LIMIT
    }


def build_on_ray(
    address: str,
    units: Sequence[Unit],
    checkpoint: Path,
    recipe: Recipe,
    directory: Path,
    store: ReleaseStore,
    *,
    redis_url: str,
    redis_namespace: str,
    exclusion: Exclusion = NO_EXCLUSION,
    cores: int | None = None,
    progress: Callable[[int, int, int], None] | None = None,
) -> BuildReport:
    """Build every unit as a Ray task that brings its segment into the store; only `publish` and `activate` are left to do.

    The units' paths and redis_url must mean the same on every node. directory: notes for resuming. cores: of a "local"
    cluster. progress: (units done, units in all, tokens so far). Raises what tasks refuse with, and `ray_cluster`'s errors.
    """
    notes = BuildNotes(directory)
    publication = uuid.uuid4().hex
    order = BuildOrder(
        tokenizer_files=tokenizer_files(checkpoint),
        recipe=recipe,
        exclusion=exclusion,
        known=notes.everything(),
        redis_url=redis_url,
        redis_namespace=redis_namespace,
        publication=publication,
    )
    results: dict[int, UnitResult] = {}
    reused, tokens, newest = 0, 0, publication
    with ray_cluster(address, cores=cores) as ray:
        task = ray.remote(num_cpus=1, max_retries=3)(run_unit)
        shared = ray.put(order)
        limit = max(1, TASKS_PER_CORE * int(ray.cluster_resources().get("CPU", os.cpu_count() or 1)))
        waiting = iter(enumerate(units))
        running: dict[Any, int] = {}
        while True:
            while len(running) < limit and (following := next(waiting, None)) is not None:
                number, unit = following
                running[task.remote(shared, unit)] = number
            if not running:
                break
            done, _ = ray.wait(list(running), num_returns=1, timeout=RENEW_S)
            for reference in done:
                number = running.pop(reference)
                finished = _done(ray.get(reference))
                results[number] = finished.result
                tokens += finished.result.segment.tokens
                reused += finished.reused
                notes.put(finished.result)
                newest = finished.result.segment.digest
                if progress:
                    progress(len(results), len(units), tokens)
            # Renews the whole publication, and adds what was in the store before this build.
            store.lease(publication, {newest}, LEASE_MS)
    ordered = [results[number] for number in range(len(units))]
    # The lease is left to lapse: `publish` takes its own before this one could.
    return build_report(release_of(ordered, recipe, exclusion), {}, ordered, reused=reused)


def _done(outcome: UnitDone | UnitRefused) -> UnitDone:
    if isinstance(outcome, UnitRefused):
        raise outcome.kind(outcome.field, outcome.message)
    return outcome
