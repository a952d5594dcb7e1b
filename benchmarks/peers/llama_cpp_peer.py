"""llama.cpp as a peer: its server, hosted in this process by xllamacpp, plain and with its n-gram lookup.

Runs in an environment of its own (peers/environments.py), so it imports nothing of ours: `python llama_cpp_peer.py
FILE.gguf`. Requests and answers are a line of JSON each, as transformers_peer.py has them, but for text and a count in
place of tokens, which the server does not give. Every request prefills its whole prompt.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from typing import Any

_CONTEXT = 4096
_NGRAM = 3


class LlamaCppPeer:
    """One server by number of looked-up tokens, over the same mapped file."""

    def __init__(self, path: str, threads: int) -> None:
        self._library: Any = importlib.import_module("xllamacpp")
        self._path, self._threads = path, threads
        self._servers: dict[int, Any] = {0: self._server(0)}

    def _server(self, lookup: int) -> Any:
        params = self._library.CommonParams()
        params.model.path = self._path
        params.n_ctx, params.n_parallel, params.n_gpu_layers = _CONTEXT, 1, 0
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = self._threads
        params.cache_prompt, params.verbosity = False, 0
        if lookup:
            params.speculative.types = [self._library.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
            params.speculative.ngram_simple.size_n = _NGRAM
            params.speculative.ngram_simple.size_m = lookup
            params.speculative.draft.n_max = lookup
        return self._library.Server(params)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        lookup = request.get("prompt_lookup") or 0
        if lookup not in self._servers:
            self._servers[lookup] = self._server(lookup)
        asked = {
            "prompt": request["prompt_ids"],
            "n_predict": request["max_new_tokens"],
            "temperature": 0,
            # What is repeated is copied here; a penalty would make it another task.
            "repeat_penalty": 1.0,
            "cache_prompt": False,
        }
        started = time.perf_counter()
        answer = self._servers[lookup].handle_completions(asked)
        seconds = time.perf_counter() - started
        found = json.loads(answer) if isinstance(answer, str | bytes) else answer
        text, count = found["choices"][0]["text"], found["usage"]["completion_tokens"]
        return {"id": request.get("id", ""), "text": text, "count": count, "seconds": seconds}


def main() -> None:
    """Serves requests until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    peer = LlamaCppPeer(arguments.file, arguments.threads)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(peer.answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
