"""A soak: mixed load for minutes while every process's resident memory is sampled, and the slope with an interval."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.progress import Progress

from benchmarks.engine_load import children
from benchmarks.engine_prompts import concurrent_prompts
from benchmarks.runs import generate
from benchmarks.stacks import Serving, checkpoint_directory, serving
from contracts.sampling import SamplingPolicy
from services.text import CheckpointTokenizer

_CLIENTS = 4
_SAMPLE_S = 1.0
_MIB = 1 << 20
# Left out at the start: caches of prefixes, pages of KV and allocators' arenas fill up.
_SETTLING_SHARE = 1 / 3
# A slope below this share of the resident memory a minute counts as flat, or an interval that holds 0.
_FLAT_SHARE = 0.001
Series = dict[str, list[tuple[float, float]]]


def processes(on: Serving) -> dict[str, int]:
    """Process ids of services and embedded Redis, and of what they started by position: the engine is `verifier.1`."""
    found = {child.spec.name: child.pid for child in on.stack.supervisor.children if child.pid is not None}
    if on.stack.redis is not None:
        found["redis"] = on.stack.redis.pid
    for name, pid in list(found.items()):
        found |= {f"{name}.{number}": child for number, child in enumerate(children(pid), start=1)}
    return found


def resident_mb(pid: int) -> float:
    """Resident memory in MiB; 0 once the process is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / _MIB


async def soak(minutes: float, cache: Path, progress: Progress) -> tuple[Series, dict[str, int]]:
    """((seconds, MiB) by process, counts of what was asked): four clients, each with a request of its own at a time.

    Modes, lengths, temperatures and prompts are drawn; one request in eight is dropped by its client on the way.
    """
    tokenizer = CheckpointTokenizer(checkpoint_directory(cache))
    prompts = [tokenizer.encode_chat(prompt.messages) for prompt in concurrent_prompts()]
    counts = {"finished": 0, "dropped": 0}
    series: Series = {}
    async with serving("bfloat16", cache, progress) as on:
        watched = processes(on)
        started = time.monotonic()
        ends = started + 60 * minutes
        task = progress.add_task("soak, seconds", total=60 * minutes)

        async def client(number: int) -> None:
            drawn = random.Random(number)
            while time.monotonic() < ends:
                policy = SamplingPolicy(
                    temperature=drawn.choice((0.0, 0.0, 0.8)),
                    seed=drawn.randrange(1 << 30),
                    max_tokens=drawn.choice((16, 48, 96)),
                )
                mode = drawn.choice(("off", "lookup", "retrieval", "both"))
                asked = generate(on.client, drawn.choice(prompts), mode, policy)
                if drawn.random() < 0.125:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(asked, drawn.uniform(0.1, 1.0))
                    counts["dropped"] += 1
                else:
                    await asked
                    counts["finished"] += 1

        clients = [asyncio.create_task(client(number)) for number in range(_CLIENTS)]
        while not all(one.done() for one in clients):
            at = time.monotonic() - started
            for name, pid in watched.items():
                series.setdefault(name, []).append((at, resident_mb(pid)))
            progress.update(task, completed=at)
            await asyncio.sleep(_SAMPLE_S)
        await asyncio.gather(*clients)
    return series, counts


def slope(points: Sequence[tuple[float, float]], *, seed: int = 0) -> tuple[float, float, float]:
    """MiB a minute by least squares over the samples after settling, with a 95% interval from a bootstrap of blocks.

    Neighbouring samples are alike, so what is drawn again are residuals in blocks of a tenth of the samples.
    """
    values = np.array(points, dtype=np.float64)
    values = values[values[:, 0] >= values[-1, 0] * _SETTLING_SHARE]
    minutes, memory = values[:, 0] / 60.0, values[:, 1]
    if len(memory) < 10:
        raise ValueError(f"{len(memory)} samples after settling; at least 10 are needed")
    rate, start = np.polyfit(minutes, memory, 1)
    line = rate * minutes + start
    residuals, block = memory - line, max(1, len(memory) // 10)
    generator = np.random.default_rng(seed)
    rates = []
    for _ in range(1000):
        places = generator.integers(0, len(residuals) - block + 1, -(-len(residuals) // block))
        drawn = np.concatenate([residuals[place : place + block] for place in places])[: len(residuals)]
        rates.append(np.polyfit(minutes, line + drawn, 1)[0])
    low, high = np.percentile(rates, [2.5, 97.5])
    return float(rate), float(low), float(high)


def figures(series: Series, counts: Mapping[str, int]) -> dict[str, float | int | str | bool]:
    """By process: memory at the end, slope and its interval, flat or not; all of them flat or not."""
    out: dict[str, float | int | str | bool] = {f"soak_{name}": count for name, count in counts.items()}
    every = True
    for name, points in series.items():
        key = f"soak_{name.replace('.', '_')}"
        rate, low, high = slope(points)
        flat = low <= 0.0 or rate < _FLAT_SHARE * points[-1][1]
        every = every and flat
        out[f"{key}_mb"] = points[-1][1]
        out[f"{key}_mb_per_minute"], out[f"{key}_low"], out[f"{key}_high"] = rate, low, high
        out[f"{key}_flat"] = flat
    out["soak_minutes"] = max(points[-1][0] for points in series.values()) / 60.0
    out["soak_flat"] = every
    return out
