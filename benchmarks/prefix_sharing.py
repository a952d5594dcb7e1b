"""What sharing prompt starts saves: time to the first token of a conversation's second turn, with it and without.

    python -m benchmarks.prefix_sharing --json FILE

One engine over the demo target for both: with a salt of its own a turn finds nothing to share. Both kinds alternate.
"""

from __future__ import annotations

import argparse
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

CHECKPOINT = Path(".cache/models/smollm2-135m-instruct")
REPLY, QUESTION = 32, 24


class Turns:
    """Turns of conversations at one engine. Times in milliseconds."""

    def __init__(self) -> None:
        backend = load_backend(CHECKPOINT, dtype="bfloat16", kv_budget_tokens=16384)
        self.engine = Engine(
            backend, "t" * 64, "demo", (), max_rows=32, kv_tokens=16384, prefill_chunk=64, cache_tokens=8192
        )
        self._number = 0

    def turn(self, prompt: list[int], scope: str, tokens: int) -> tuple[float, int, list[int]]:
        """Time to the first token, prompt tokens that were there, and the tokens published."""
        policy = SamplingPolicy(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        manifest = Manifest(self.engine.describe().target, policy.to_json(), (), "greedy", "exact", 0, 1)
        self._number += 1
        name = f"turn {self._number}"
        started = time.perf_counter()
        opening = OpenSession(name, manifest, policy, np.array(prompt, np.int64), cache_scope=scope)
        cached = self.engine.open_session(opening).cached_tokens
        said: list[int] = []
        first_ms = 0.0
        while len(said) < tokens:
            frontier = Frontier(prompt + said)
            coordinates = RoundManifest(manifest.hash, name, len(said), len(frontier), frontier.digest, len(said), ())
            request = VerifyRequest(coordinates, EMPTY_GRAPH, payload_digest(coordinates, EMPTY_GRAPH))
            (receipt,) = self.engine.verify_many([request])
            if isinstance(receipt, Exception):
                raise receipt
            first_ms = first_ms or (time.perf_counter() - started) * 1e3
            said += receipt.tokens
        self.engine.close_session(name)
        return first_ms, cached, said


def measure(repeats: int) -> dict[str, float]:
    turns = Turns()
    rng = np.random.default_rng(0)
    turns.turn(rng.integers(100, 40_000, 70).tolist(), "warm", 2)
    out: dict[str, float] = {}
    for length in (128, 512, 1024):
        times: dict[str, list[float]] = {"shared": [], "alone": []}
        shares = []
        for repeat in range(repeats):
            opening = rng.integers(100, 40_000, length).tolist()
            _, _, reply = turns.turn(opening, f"{length} {repeat}", REPLY)
            second = opening + reply + rng.integers(100, 40_000, QUESTION).tolist()
            for kind in ("shared", "alone") if repeat % 2 else ("alone", "shared"):
                scope = f"{length} {repeat}" if kind == "shared" else f"alone {length} {repeat}"
                first_ms, cached, _ = turns.turn(second, scope, 1)
                times[kind].append(first_ms)
                shares += [cached / len(second)] * (kind == "shared")
        shared, alone = (np.array(times[kind]) for kind in ("shared", "alone"))
        out[f"second_turn_first_token_ms_shared_{length}"] = float(np.median(shared))
        out[f"second_turn_first_token_ms_alone_{length}"] = float(np.median(alone))
        out[f"second_turn_alone_over_shared_{length}"] = float(np.median(alone / shared))
        out[f"second_turn_cached_share_{length}"] = float(np.mean(shares))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three repeats instead of nine")
    parser.add_argument("--json", type=Path, help="where the figures go")
    arguments = parser.parse_args()
    figures = measure(3 if arguments.quick else 9)
    for name, figure in figures.items():
        print(f"{name:50} {figure:10.3f}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
