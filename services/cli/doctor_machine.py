"""What `draftproof doctor` looks at of the machine: device, cache, threads, sockets, and memory for KV."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from contracts.errors import DraftproofError
from services.cli.findings import Finding, installed
from services.settings import PREFIX, AllSettings

# KV lies in fp32 where a CPU computes.
_KV_BYTES = 4
_SERVICES = ("verifier", "proposer", "retriever")


def device(settings: AllSettings) -> Iterator[Finding]:
    """Of a GPU alone: asking torch takes a second, which a CPU is not worth."""
    if settings.device == "cpu":
        return
    import torch

    from models.cuda.device import require_device

    try:
        found = require_device(settings.device)
    except DraftproofError as error:
        yield Finding("bad", f"target's {error}", "set DRAFTPROOF_DEVICE=cpu, or mend driver and torch build")
        return
    if found.type == "cpu":
        return
    facts = torch.cuda.get_device_properties(found)
    yield Finding("ok", f"device {settings.device}: {facts.name}, {facts.total_memory / (1 << 30):.0f} GiB")
    if not installed("triton"):
        yield Finding("note", "triton is not installed: attention runs in plain torch, slowly", "pip install triton")


def cache(settings: AllSettings) -> Iterator[Finding]:
    """Whether what is converted, fetched and compiled can be kept."""
    directory = settings.cache_dir.resolve()
    if _writable(directory):
        yield Finding("ok", f"cache: {settings.cache_dir}")
    else:
        mend = "set DRAFTPROOF_CACHE_DIR to a directory of yours"
        yield Finding("bad", f"cache: {directory} cannot be written", mend)


def threads(settings: AllSettings) -> Iterator[Finding]:
    """Threads of a pass wait for each other, so more than there are cores make it slower, not faster."""
    cores = len(os.sched_getaffinity(0))
    for name in ("threads", "draft_threads"):
        wanted = int(getattr(settings, name))
        if settings.device == "cpu" and wanted > cores:
            message = f"{PREFIX}{name.upper()}: {wanted} threads that wait for each other, on {cores} cores"
            yield Finding("note", message, f"set it to {cores} at most, or 0 for as many as there are cores")


def links(settings: AllSettings) -> Iterator[Finding]:
    """Whether sockets can be made in the link directory, where one is set."""
    from services.link.address import link_of

    directory = settings.links
    if directory is None:
        return
    mend = "set DRAFTPROOF_LINK_DIR to a directory of yours with a short path, or to - for gRPC only"
    if not _writable(directory.resolve()):
        yield Finding("bad", f"links: {directory} cannot be written", mend)
        return
    try:
        for service in _SERVICES:
            link_of(directory, service, int(getattr(settings, f"{service}_port")))
    except DraftproofError as error:
        yield Finding("bad", f"links: {error}", mend)
    else:
        yield Finding("ok", f"links: in {directory}")


def kv(settings: AllSettings) -> Iterator[Finding]:
    """How much KV there is, whether the machine can hold it, and what is shared of it."""
    yield from _kv_memory(settings)
    whole, kept = settings.kv_tokens, settings.prefix_cache_tokens
    if not settings.prefix_sharing:
        mend = "unset DRAFTPROOF_PREFIX_SHARING to let sessions of one tenant share the starts of their prompts"
        yield Finding("note", f"KV: {whole} tokens, every prompt prefilled whole", mend)
    elif kept > whole:
        mend = f"set DRAFTPROOF_PREFIX_CACHE_TOKENS to at most {whole}, or DRAFTPROOF_KV_TOKENS higher"
        yield Finding("note", f"KV: {whole} tokens, so ended sessions leave at most as many, not {kept}", mend)
    else:
        yield Finding("ok", f"KV: {whole} tokens; prompt starts are shared, ended sessions leave up to {kept}")


def model_directory(settings: AllSettings) -> Path:
    """Where the model lies, or will once it is fetched."""
    from models.checkpoint import fetchable

    named = Path(settings.model)
    return settings.models_dir / settings.model if fetchable(settings.model) and not named.is_dir() else named


def _kv_memory(settings: AllSettings) -> Iterator[Finding]:
    """Of a CPU, whose memory everything else shares; for a model that is here and whose sizes we read."""
    from models.config import read_config

    directory = model_directory(settings)
    if settings.device != "cpu" or not directory.is_dir():
        return
    try:
        config = read_config(directory)
    except DraftproofError:
        # The model's own line says so, or it runs by the fallback.
        return
    token = 2 * _KV_BYTES * config.num_layers * config.num_kv_heads * config.head_dim
    needed, memory = settings.kv_tokens * token, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if 2 * needed > memory:
        message = f"KV: {settings.kv_tokens} tokens take {_gib(needed)} of this machine's {_gib(memory)}"
        fitting = memory // 4 // token
        yield Finding("bad" if needed > memory else "note", message, f"set {PREFIX}KV_TOKENS to {fitting} or so")


def _writable(directory: Path) -> bool:
    """Whether files can be made there, the directory itself among them."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    return existing.is_dir() and os.access(existing, os.W_OK)


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
