"""Talking to a peer that runs as a process of its own and answers a line of JSON for each."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from benchmarks.peers.environments import PeerMissing

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Peer:
    """A running peer. hello: what it said when it was ready."""

    stdin: IO[str]
    stdout: IO[str]
    hello: Mapping[str, Any] = field(default_factory=dict)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """One request, one answer. Raises RuntimeError if the peer has ended."""
        self.stdin.write(json.dumps(request) + "\n")
        self.stdin.flush()
        line = self.stdout.readline()
        if not line:
            raise RuntimeError("the peer process has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def generate(self, prompt_ids: Sequence[int], max_new_tokens: int, prompt_lookup: int = 0) -> dict[str, Any]:
        """Greedy tokens and the seconds they took."""
        return self.ask(
            {
                "id": "",
                "prompt_ids": list(prompt_ids),
                "max_new_tokens": max_new_tokens,
                "prompt_lookup": prompt_lookup,
            }
        )

    def batch(self, prompts: Sequence[Sequence[int]], max_new_tokens: int, concurrency: int) -> dict[str, Any]:
        """Greedy tokens of all prompts, `concurrency` of them at a time, and the seconds they took together."""
        return self.ask(
            {
                "batch": [list(prompt) for prompt in prompts],
                "max_new_tokens": max_new_tokens,
                "concurrency": concurrency,
            }
        )


@contextmanager
def running_peer(command: Sequence[str], log: Path | None = None) -> Iterator[Peer]:
    """The peer that `command` starts, ready inside the block.

    log: file for its standard error; None drops it. Raises PeerMissing if it ends before it is ready.
    """
    with (
        nullcontext(subprocess.DEVNULL) if log is None else log.open("w") as errors,
        subprocess.Popen(
            list(command), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the peer has no pipes")
        try:
            line = process.stdout.readline()
            if not line:
                said = log.read_text().strip().splitlines()[-1:] if log else []
                raise PeerMissing(f"ended with {process.wait()} before it was ready: {' '.join(said)}")
            yield Peer(process.stdin, process.stdout, json.loads(line))
        finally:
            process.stdin.close()
            process.wait()


@contextmanager
def transformers_peer(checkpoint: Path, dtype: str, threads: int = 2) -> Iterator[Peer]:
    """Transformers on `checkpoint`, ready inside the block."""
    command = [sys.executable, "-m", "benchmarks.peers.transformers_peer", str(checkpoint)]
    with running_peer([*command, "--dtype", dtype, "--threads", str(threads)]) as peer:
        yield peer
