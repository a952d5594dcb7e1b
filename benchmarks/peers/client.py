"""Talking to a peer that runs as a process of its own and answers a line of JSON for each."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Peer:
    """A running peer."""

    stdin: IO[str]
    stdout: IO[str]

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


@contextmanager
def transformers_peer(checkpoint: Path, dtype: str, threads: int = 2) -> Iterator[Peer]:
    """Transformers on `checkpoint`, ready inside the block."""
    command = [sys.executable, "-m", "benchmarks.peers.transformers_peer", str(checkpoint)]
    with subprocess.Popen(
        [*command, "--dtype", dtype, "--threads", str(threads)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the peer has no pipes")
        process.stdout.readline()
        try:
            yield Peer(process.stdin, process.stdout)
        finally:
            process.stdin.close()
            process.wait()
