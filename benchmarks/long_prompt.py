"""What a long prompt costs others: time between a stream's tokens while 1,500 tokens fill beside it, and the prompt's own.

    python -m benchmarks.long_prompt --json FILE

One engine and its worker over the demo target, one session that decodes a token a round; long prompts come one after
another, each of random tokens, so that nothing is shared. Times in milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path

import numpy as np

from contracts.frontier import Frontier
from contracts.graph import EMPTY_GRAPH
from contracts.manifest import Manifest, RoundManifest
from contracts.payload import payload_digest
from contracts.ports import OpenSession, VerifyRequest
from contracts.sampling import SamplingPolicy
from models.load import load_backend
from verifier.engine import Engine
from verifier.local import LocalVerifier
from verifier.worker import Worker

CHECKPOINT = Path(".cache/models/smollm2-135m-instruct")
PROMPT, CONTEXT, TOKENS, ALONE = 1500, 200, 1200, 60


class Stream:
    """A session that decodes without end, and when its tokens came."""

    def __init__(self, port: LocalVerifier, target: Manifest, prompt: list[int]) -> None:
        self.arrived: list[float] = []
        self._port = port
        self._manifest = target
        self._tokens = prompt

    async def run(self) -> None:
        for number in range(TOKENS):
            frontier = Frontier(self._tokens)
            coordinates = RoundManifest(
                self._manifest.hash, "stream", number, len(frontier), frontier.digest, number, ()
            )
            request = VerifyRequest(
                coordinates, EMPTY_GRAPH, payload_digest(coordinates, EMPTY_GRAPH), acknowledge=number - 1
            )
            self._tokens += (await self._port.verify(request)).tokens
            self.arrived.append(time.perf_counter() * 1e3)

    async def gaps(self, count: int) -> list[float]:
        """Times between the next tokens."""
        first = len(self.arrived)
        while len(self.arrived) < first + count + 1:
            await asyncio.sleep(0.005)
        return np.diff(self.arrived[first:]).tolist()


async def measure(repeats: int) -> dict[str, float]:
    backend = load_backend(CHECKPOINT, dtype="bfloat16", kv_budget_tokens=16384)
    engine = Engine(backend, "t" * 64, "demo", (), max_rows=32, kv_tokens=16384, prefill_chunk=64, cache_tokens=0)
    engine.warm_up()
    rng = np.random.default_rng(0)
    policy = SamplingPolicy(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    manifest = Manifest(engine.describe().target, policy.to_json(), (), "greedy", "exact", 0, 1)
    gaps: dict[str, list[float]] = {"alone": [], "beside": []}
    prompts: dict[str, list[float]] = {"alone": [], "beside": []}
    async with LocalVerifier(Worker(engine)) as port:

        async def fill(kind: str, number: int) -> None:
            tokens = rng.integers(100, 40_000, PROMPT)
            started = time.perf_counter()
            await port.open_session(OpenSession(f"{kind} {number}", manifest, policy, tokens))
            prompts[kind].append((time.perf_counter() - started) * 1e3)
            await port.close_session(f"{kind} {number}")

        for number in range(repeats):
            await fill("alone", number)
        prompt = rng.integers(100, 40_000, CONTEXT)
        await port.open_session(OpenSession("stream", manifest, policy, prompt))
        stream = Stream(port, manifest, prompt.tolist())
        task = asyncio.create_task(stream.run())
        for number in range(repeats):
            gaps["alone"] += await stream.gaps(ALONE)
            first = len(stream.arrived)
            await fill("beside", number)
            gaps["beside"] += np.diff(stream.arrived[first:]).tolist()
        task.cancel()
    out: dict[str, float] = {}
    for kind in gaps:
        out[f"between_tokens_ms_p50_{kind}"] = float(np.percentile(gaps[kind], 50))
        out[f"between_tokens_ms_p99_{kind}"] = float(np.percentile(gaps[kind], 99))
        out[f"prompt_ms_{kind}"] = float(np.median(prompts[kind]))
    out["p50_beside_over_alone"] = out["between_tokens_ms_p50_beside"] / out["between_tokens_ms_p50_alone"]
    out["p99_beside_over_alone"] = out["between_tokens_ms_p99_beside"] / out["between_tokens_ms_p50_alone"]
    out["prompt_beside_over_alone"] = out["prompt_ms_beside"] / out["prompt_ms_alone"]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one prompt instead of three")
    parser.add_argument("--json", type=Path, help="where the figures go")
    arguments = parser.parse_args()
    figures = asyncio.run(measure(1 if arguments.quick else 3))
    for name, figure in figures.items():
        print(f"{name:40} {figure:10.2f}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
