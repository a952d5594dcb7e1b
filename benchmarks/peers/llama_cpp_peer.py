"""llama.cpp as a peer, through llama-cpp-python: plain decoding and its prompt lookup.

Runs in an environment of its own (peers/environments.py), so it imports nothing of ours: `python llama_cpp_peer.py
FILE.gguf`. Requests and answers are a line of JSON each, as transformers_peer.py has them. Every request prefills its
whole prompt.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from typing import Any

_CONTEXT = 4096
_NGRAM = 2


class LlamaCppPeer:
    """One model by number of looked-up tokens, over the same mapped file."""

    def __init__(self, path: str, threads: int) -> None:
        self._library: Any = importlib.import_module("llama_cpp")
        self._path, self._threads = path, threads
        self._models: dict[int, Any] = {0: self._model(0)}

    def _model(self, lookup: int) -> Any:
        extra: dict[str, Any] = {}
        if lookup:
            speculative = importlib.import_module("llama_cpp.llama_speculative")
            extra["draft_model"] = speculative.LlamaPromptLookupDecoding(max_ngram_size=_NGRAM, num_pred_tokens=lookup)
        threads = {"n_threads": self._threads, "n_threads_batch": self._threads}
        return self._library.Llama(self._path, n_ctx=_CONTEXT, verbose=False, **threads, **extra)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        lookup = request.get("prompt_lookup") or 0
        if lookup not in self._models:
            self._models[lookup] = self._model(lookup)
        model = self._models[lookup]
        # Or the part of the prompt that the last request shared would not be prefilled.
        model.reset()
        tokens: list[int] = []
        started = time.perf_counter()
        for token in model.generate(request["prompt_ids"], temp=0.0, top_k=1, repeat_penalty=1.0):
            tokens.append(int(token))
            if token == model.token_eos() or len(tokens) == request["max_new_tokens"]:
                break
        return {"id": request.get("id", ""), "tokens": tokens, "seconds": time.perf_counter() - started}


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
