"""Phase `memory`: what a session adds to the engine's resident memory, how long a start takes, and the soak.

Sessions are opened with the verifier itself and held; a start is `draftproof up` from the command to its line "ready",
with the model converted and the kernels compiled before.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.progress import Progress

from benchmarks.engine_records import Records
from benchmarks.engine_soak import figures as soak_figures
from benchmarks.engine_soak import processes, resident_mb, soak
from benchmarks.stacks import serving
from contracts.manifest import Manifest
from contracts.ports import OpenSession
from contracts.sampling import SamplingPolicy
from services.clients.verifier import VerifierClient
from services.settings import PREFIX

CONTEXTS = (256, 1024, 4096)
SERVICES = ("verifier", "proposer", "retriever", "orchestrator")
_KV_TOKENS = 32_768
_READY_WITHIN_S = 120.0


@dataclass(frozen=True)
class MemoryPlan:
    """sessions: by context. starts: timed, after one that warms. soak_minutes: of mixed load."""

    sessions: dict[int, int]
    starts: int
    soak_minutes: float


async def measure(records: Records, plan: MemoryPlan, cache: Path, progress: Progress) -> None:
    """Adds the units memory/sessions, memory/start/N and memory/soak."""
    if records.wants("memory/sessions"):
        records.add("memory/sessions", await _sessions(plan.sessions, cache, progress))
    task = progress.add_task("starts", total=plan.starts + 1)
    for number in range(plan.starts + 1):
        if records.wants(f"memory/start/{number}"):
            records.add(f"memory/start/{number}", start_up_s(cache))
        progress.advance(task)
    if records.wants("memory/soak"):
        series, counts = await soak(plan.soak_minutes, cache, progress)
        records.add("memory/soak", {"series": series, "counts": counts})


async def _sessions(sessions: dict[int, int], cache: Path, progress: Progress) -> dict[str, float]:
    """MiB a session by context, and of the engine before any."""
    out: dict[str, float] = {}
    generator = np.random.default_rng(6)
    async with serving("bfloat16", cache, progress, kv_tokens=_KV_TOKENS) as on:
        engine = processes(on)["verifier.1"]
        verifier = VerifierClient(on.stack.endpoints["verifier"])
        try:
            target = (await verifier.describe()).target
            policy = SamplingPolicy(temperature=0.0, max_tokens=16)
            manifest = Manifest(target, policy.to_json(), (), "greedy", "exact", 0, 0)
            task = progress.add_task("open sessions", total=sum(sessions.values()))

            async def hold(name: str, tokens: int) -> None:
                prompt = generator.integers(100, 40_000, tokens + 1)
                await verifier.open_session(OpenSession(name, manifest, policy, prompt, lease_ms=600_000))
                progress.advance(task)

            # One first, for what any session allocates once.
            await hold("first", 64)
            out["engine_mb"] = before = resident_mb(engine)
            for context, count in sessions.items():
                for number in range(count):
                    await hold(f"{context}-{number}", context)
                after = resident_mb(engine)
                out[f"session_mb_{context}"] = (after - before) / count
                before = after
            out["kv_token_bytes"] = float((await verifier.describe()).kv_token_bytes)
        finally:
            await verifier.close()
    return out


def start_up_s(cache: Path) -> float:
    """Seconds from the command to "ready"; the services are stopped again.

    Raises RuntimeError with the end of what it said if it is not ready within two minutes.
    """
    with tempfile.TemporaryDirectory(prefix="starts-") as folder:
        ports = {f"{PREFIX}{name.upper()}_PORT": "0" for name in (*SERVICES, "redis")}
        output = Path(folder) / "output"
        with output.open("w") as file:
            started = time.perf_counter()
            process = subprocess.Popen(
                [sys.executable, "-m", "services.cli", "up", "--logs", folder],
                env={**os.environ, **ports, f"{PREFIX}CACHE_DIR": str(cache.resolve()), "PYTHONUNBUFFERED": "1"},
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        try:
            while "ready:" not in output.read_text():
                if process.poll() is not None or time.perf_counter() - started > _READY_WITHIN_S:
                    raise RuntimeError(f"`up` was not ready: {output.read_text()[-500:]}")
                time.sleep(0.02)
            return time.perf_counter() - started
        finally:
            process.terminate()
            process.wait()


def figures(records: Records) -> dict[str, float | int | str | bool]:
    """MiB a session, seconds to start (the first start, which warms, left out), the soak's."""
    out: dict[str, float | int | str | bool] = {}
    for unit in records.of("memory/sessions"):
        out.update(unit)
    starts = records.of("memory/start/")
    if len(starts) > 1:
        out["start_up_s"] = statistics.median(starts[1:])
        out["start_up_most_s"] = max(starts[1:])
    for unit in records.of("memory/soak"):
        out.update(soak_figures(unit["series"], unit["counts"]))
    return out
