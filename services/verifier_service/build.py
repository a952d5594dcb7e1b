"""From settings to a worker over a loaded target. Imports torch."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path

import torch

from models.checkpoint import resolve, tokenizer_digest
from models.load import load_backend
from services.settings import VerifierSettings
from verifier.engine import Engine
from verifier.hardware import hardware_profile
from verifier.worker import Worker

_log = logging.getLogger(__name__)


def build_worker(settings: VerifierSettings) -> Worker:
    """Loads the target (fetching and converting it first where that was not done) and measures its one-row step."""
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
    )
    engine = Engine(
        backend,
        tokenizer_digest(directory),
        model_name=settings.model if not Path(settings.model).is_dir() else Path(settings.model).name,
        eos_ids=eos_ids(directory),
        max_rows=settings.max_rows,
        kv_tokens=settings.kv_tokens,
        hardware=hardware_profile(settings.device),
        prefill_chunk=settings.prefill_chunk,
    )
    engine.warm_up()
    return Worker(engine, max_queue=settings.max_queue, max_pass_rows=settings.max_pass_rows)


def eos_ids(directory: Path) -> tuple[int, ...]:
    """End-of-sequence ids of a checkpoint: generation_config.json's where it names them, else config.json's."""
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        if path.is_file():
            found = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
            if found is not None:
                return tuple(found) if isinstance(found, Iterable) else (int(found),)
    return ()
