"""t(n): how long a target pass takes by its rows, on this machine, now, loaded and threaded as the verifier does it."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from contracts.errors import InvalidArgument
from models.backend import Backend, RowBlock
from models.checkpoint import resolve
from models.load import load_backend
from services.settings import VerifierSettings

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_PREFILL_ROWS = 256


def load_target(settings: VerifierSettings, *, kv_tokens: int = 2048) -> Backend:
    """The target under the settings' type, device, implementation and threads, and torch's own threads set likewise."""
    threads = settings.threads or len(os.sched_getaffinity(0))
    if settings.device == "cpu":
        torch.set_num_threads(threads)
    backend = load_backend(
        resolve(settings.model, settings.models_dir),
        dtype=settings.dtype,
        device=settings.device,
        kv_budget_tokens=kv_tokens,
        threads=threads,
        implementation=settings.backend or None,
        fixed_rows=settings.fixed_rows or None,
    )
    if backend.info.backend == "cpu-llvm":
        torch.set_num_threads(1)
    return backend


def measure_passes(
    backend: Backend,
    rows: Sequence[int],
    *,
    context: int,
    repeats: int = 15,
    clock: Callable[[], int] = time.perf_counter_ns,
    done: Callable[[], None] = lambda: None,
) -> tuple[tuple[int, int], ...]:
    """(rows, median nanoseconds) of a verification pass over `context` committed rows, all logits wanted.

    The rows form a chain; siblings instead of descendants change only the mask. Row counts are taken in turn, `repeats`
    times over, so that a slow moment of the machine falls on all of them. Times that fall with more rows are noise, and
    are replaced by the running maximum. `done` is called after each turn. Raises InvalidArgument where the context and the
    rows do not fit the model, ResourceExhausted where they do not fit the KV budget.
    """
    most = max(rows)
    if context < 1 or context + most > backend.info.context_length:
        raise InvalidArgument("context", f"{context} and {most} rows exceed {backend.info.context_length}")
    slot = backend.allocate(context + max(most, _PREFILL_ROWS))
    try:
        ids = np.random.default_rng(0).integers(0, backend.info.vocab_size, context + most)
        for start in range(0, context, _PREFILL_ROWS):
            part = np.arange(min(_PREFILL_ROWS, context - start))
            backend.forward([RowBlock(slot, ids[start + part], start + part, part - 1, part[:0])])
            backend.commit(slot, part.tolist())
        taken: dict[int, list[int]] = {count: [] for count in sorted(rows)}
        # The first turn warms caches and kernels and is not counted.
        for turn in range(repeats + 1):
            for count, times in taken.items():
                part = np.arange(count)
                block = RowBlock(slot, ids[context + part], context + part, part - 1)
                started = clock()
                backend.forward([block])
                if turn:
                    times.append(clock() - started)
                backend.rollback(slot)
            done()
    finally:
        backend.release(slot)
    medians = [int(statistics.median(times)) for times in taken.values()]
    return tuple(zip(taken, np.maximum.accumulate(medians).tolist(), strict=True))
