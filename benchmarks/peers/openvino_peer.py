"""OpenVINO GenAI as a peer: plain decoding, its prompt lookup, and its continuous batching.

Runs in an environment of its own (peers/environments.py), so it imports nothing of ours:
`python openvino_peer.py FILE.gguf --precision bf16 --modes plain,lookup,batch`. GenAI builds its stateful graph from the
GGUF file; `bf16` and `f32` are hints of the precision it computes in, and the first line it answers says what it took.
Requests and answers are a line of JSON each, as transformers_peer.py has them; {"batch": [[id, ...], ...], "concurrency":
c} runs a closed loop of c requests at a time.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from typing import Any

_CACHE_GB = 2
_NGRAM, _ASSISTANT_TOKENS = 3, 5


class OpenVinoPeer:
    """Pipelines by mode."""

    def __init__(self, path: str, precision: str, threads: int, modes: list[str]) -> None:
        self._genai: Any = importlib.import_module("openvino_genai")
        self._openvino: Any = importlib.import_module("openvino")
        self._numpy: Any = importlib.import_module("numpy")
        self.options = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads}
        self._pipelines: dict[str, Any] = {}
        for mode in modes:
            if mode == "batch":
                tokenizer = self._genai.Tokenizer(path)
                self._pipelines[mode] = self._genai.ContinuousBatchingPipeline(
                    path, tokenizer, self._scheduler(), "CPU", **self.options
                )
            else:
                extra = {"prompt_lookup": True, "scheduler_config": self._scheduler()} if mode == "lookup" else {}
                self._pipelines[mode] = self._genai.LLMPipeline(path, "CPU", **extra, **self.options)

    def _scheduler(self) -> Any:
        scheduler = self._genai.SchedulerConfig()
        scheduler.cache_size = _CACHE_GB
        scheduler.enable_prefix_caching = False
        return scheduler

    def _config(self, request: dict[str, Any]) -> Any:
        config = self._genai.GenerationConfig()
        config.max_new_tokens = request["max_new_tokens"]
        config.do_sample = False
        config.ignore_eos = bool(request.get("ignore_eos"))
        config.set_eos_token_id(request.get("eos", 2))
        if request.get("prompt_lookup"):
            config.num_assistant_tokens = request["prompt_lookup"]
            config.max_ngram_size = _NGRAM
        return config

    def _tensor(self, ids: list[int]) -> Any:
        return self._openvino.Tensor(self._numpy.array([ids], dtype=self._numpy.int64))

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if "batch" in request:
            return self._batch(request)
        ids = request["prompt_ids"]
        pipeline = self._pipelines["lookup" if request.get("prompt_lookup") else "plain"]
        started = time.perf_counter()
        inputs = self._genai.TokenizedInputs(self._tensor(ids), self._tensor([1] * len(ids)))
        tokens = list(pipeline.generate(inputs, self._config(request)).tokens[0])
        return {"id": request.get("id", ""), "tokens": tokens, "seconds": time.perf_counter() - started}

    def _batch(self, request: dict[str, Any]) -> dict[str, Any]:
        pipeline, config = self._pipelines["batch"], self._config(request)
        waiting = list(enumerate(request["batch"]))[::-1]
        running: dict[int, Any] = {}
        tokens: list[list[int]] = [[] for _ in request["batch"]]
        started = time.perf_counter()
        while waiting or running:
            while waiting and len(running) < request["concurrency"]:
                index, ids = waiting.pop()
                running[index] = pipeline.add_request(index, self._tensor(ids), config)
            pipeline.step()
            for index, handle in list(running.items()):
                while handle.can_read():
                    for output in handle.read().values():
                        tokens[index].extend(output.generated_ids)
                if str(handle.get_status()).endswith("FINISHED"):
                    del running[index]
        return {"tokens": tokens, "seconds": time.perf_counter() - started}


def main() -> None:
    """Serves requests until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--precision", choices=["bf16", "f32"], default="bf16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--modes", default="plain,lookup")
    arguments = parser.parse_args()
    peer = OpenVinoPeer(arguments.file, arguments.precision, arguments.threads, arguments.modes.split(","))
    capabilities = importlib.import_module("openvino").Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    computes = "bf16" if arguments.precision == "bf16" and "BF16" in capabilities else "f32"
    print(json.dumps({"ready": True, "computes": computes}), flush=True)
    for line in sys.stdin:
        print(json.dumps(peer.answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
