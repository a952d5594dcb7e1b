"""Transformers' own `generate` on the same checkpoint: the reference of identity and a peer in speed.

Runs as a process of its own (`python -m benchmarks.peers.transformers_peer`), reads one JSON request a line from standard
input, {"id", "prompt_ids", "max_new_tokens", "prompt_lookup": 0 or tokens}, and answers {"id", "tokens", "seconds"} a line.
{"logits_for": ids} answers the float32 logits after the last id, for judging a parting.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM


def _answer(model: Any, request: dict[str, Any]) -> dict[str, Any]:
    if "logits_for" in request:
        with torch.inference_mode():
            logits = model(torch.tensor([request["logits_for"]])).logits[0, -1].float()
        return {"logits": logits.tolist()}
    ids = torch.tensor([request["prompt_ids"]])
    extra = {"prompt_lookup_num_tokens": request["prompt_lookup"]} if request.get("prompt_lookup") else {}
    started = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=request["max_new_tokens"],
            pad_token_id=model.generation_config.eos_token_id,
            **extra,
        )
    seconds = time.perf_counter() - started
    return {"id": request["id"], "tokens": out[0, ids.shape[1] :].tolist(), "seconds": seconds}


def main() -> None:
    """Serves requests until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = AutoModelForCausalLM.from_pretrained(arguments.directory, dtype=getattr(torch, arguments.dtype))
    model.eval()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(_answer(model, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
