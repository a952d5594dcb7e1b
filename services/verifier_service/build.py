"""From settings to a worker over a loaded target. Imports torch."""

from __future__ import annotations

import logging
import os

import torch

from models.checkpoint import resolve, tokenizer_digest
from models.cuda.device import require_device
from models.load import load_backend
from services.checkpoint_files import eos_ids, model_name
from services.settings import VerifierSettings
from verifier.engine import Engine
from verifier.hardware import hardware_profile
from verifier.worker import Worker

_log = logging.getLogger(__name__)


def build_worker(settings: VerifierSettings) -> Worker:
    """Loads the target (fetching and converting it first where that was not done) and measures its one-row step.

    Raises as `load_backend` does, a missing GPU before anything is fetched.
    """
    require_device(settings.device)
    directory = resolve(settings.model, settings.models_dir, _log.info)
    threads = settings.threads or len(os.sched_getaffinity(0))
    if settings.device == "cpu":
        torch.set_num_threads(threads)
    backend = load_backend(
        directory,
        dtype=settings.dtype,
        device=settings.device,
        kv_budget_tokens=settings.kv_tokens,
        threads=threads,
        implementation=settings.backend or None,
        fixed_rows=settings.fixed_rows or None,
        packed_dir=settings.packed_dir,
    )
    chosen = " (auto)" if settings.dtype == "auto" else ""
    _log.info("target: %s, %s%s weights by %s", settings.model, backend.info.dtype, chosen, backend.info.backend)
    if backend.info.backend == "cpu-llvm":
        # Its passes bring threads of their own; torch's would only spin beside them between small operations.
        torch.set_num_threads(1)
    engine = Engine(
        backend,
        tokenizer_digest(directory),
        model_name=model_name(settings.model),
        eos_ids=eos_ids(directory),
        max_rows=settings.max_rows,
        kv_tokens=settings.kv_tokens,
        hardware=hardware_profile(settings.device, threads),
        prefill_chunk=settings.prefill_chunk,
        prefill_slowdown=settings.prefill_slowdown,
        max_pass_rows=settings.max_pass_rows,
        share_prefixes=settings.prefix_sharing,
        cache_tokens=settings.prefix_cache_tokens,
    )
    engine.warm_up()
    described = engine.describe()
    mib = described.kv_tokens_total * described.kv_token_bytes / (1 << 20)
    _log.info("KV: %d tokens of %d bytes, %.0f MiB", described.kv_tokens_total, described.kv_token_bytes, mib)
    return Worker(engine, max_queue=settings.max_queue, max_pass_rows=settings.max_pass_rows)
