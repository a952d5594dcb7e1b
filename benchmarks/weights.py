"""What each type of weights costs: bytes, pass times side by side, and how far its laws are from fp32's.

`python -m benchmarks.weights [--quick] [--json FILE]`. Passes have a binary tree under the anchor and all logits wanted,
context 256; the types take turns within a repeat, and ratios are medians of a repeat's own. Laws are compared on the tokens
of Spec-Bench prompts under the chat template: the share of positions with the same likeliest token, the mean divergence
KL(fp32 || other) in nats, and the perplexity of the text.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress

from benchmarks.engine_pass import binary_tree, filled_slot, pass_ms
from benchmarks.figures import write
from benchmarks.prompts import spec_bench_prompts
from benchmarks.stacks import checkpoint_directory
from models.backend import Backend, RowBlock
from models.load import Dtype, load_backend
from services.text import CheckpointTokenizer

DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16", "int8", "int4")
ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 32)
CONTEXT = 256
_MOST_TOKENS = 400
Figures = dict[str, float | int | str | bool]


def law_figures(logits: dict[Dtype, list[torch.Tensor]], texts: list[list[int]]) -> Figures:
    """logits: per type and text float [T, V], those of fp32 among them. texts: the T tokens of each."""
    exact = [rows.double().log_softmax(-1) for rows in logits["float32"]]
    out: Figures = {"positions": sum(len(text) - 1 for text in texts)}
    for dtype, every in logits.items():
        agreed, divergence, surprise = 0, 0.0, 0.0
        for mine, law, text in zip(every, exact, texts, strict=True):
            own = mine.double().log_softmax(-1)
            agreed += int((own[:-1].argmax(-1) == law[:-1].argmax(-1)).sum())
            divergence += float((law[:-1].exp() * (law[:-1] - own[:-1])).sum())
            surprise -= float(own[:-1].gather(1, torch.tensor(text[1:])[:, None]).sum())
        out[f"same_argmax_{dtype}"] = agreed / int(out["positions"])
        out[f"divergence_nats_{dtype}"] = divergence / int(out["positions"])
        out[f"perplexity_{dtype}"] = float(np.exp(surprise / int(out["positions"])))
        out[f"same_bits_{dtype}"] = all(torch.equal(a, b) for a, b in zip(every, logits["float32"], strict=True))
    return out


def _logits(backend: Backend, text: list[int]) -> torch.Tensor:
    slot, rows = backend.allocate(len(text)), np.arange(len(text))
    logits = backend.forward([RowBlock(slot, np.array(text), rows, rows - 1)]).logits[0].clone()
    backend.release(slot)
    return logits


def _laws(backends: dict[Dtype, Backend], texts: list[list[int]], progress: Progress) -> Figures:
    task = progress.add_task("laws", total=len(texts) * len(backends))
    logits: dict[Dtype, list[torch.Tensor]] = {dtype: [] for dtype in backends}
    for text in texts:
        for dtype, backend in backends.items():
            logits[dtype].append(_logits(backend, text))
            progress.advance(task)
    return law_figures(logits, texts)


def _passes(backends: dict[Dtype, Backend], repeats: int, progress: Progress) -> Figures:
    task = progress.add_task("passes", total=repeats)
    slots = {dtype: filled_slot(backend, CONTEXT, np.random.default_rng(6)) for dtype, backend in backends.items()}
    generator = np.random.default_rng(7)
    took: dict[tuple[Dtype, int], list[float]] = {(dtype, rows): [] for dtype in backends for rows in ROWS}
    for repeat in range(repeats + 1):
        for rows in generator.permutation(ROWS).tolist():
            for dtype, backend in backends.items():
                ms = pass_ms(backend, binary_tree(slots[dtype], rows, generator))
                if repeat:
                    took[dtype, rows].append(ms)
        progress.advance(task)
    out: Figures = {}
    for dtype, rows in took:
        out[f"pass_ms_{dtype}_{rows}"] = statistics.median(took[dtype, rows])
        shares = [mine / bf16 for mine, bf16 in zip(took[dtype, rows], took["bfloat16", rows], strict=True)]
        out[f"over_bf16_{dtype}_{rows}"] = statistics.median(shares)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.weights")
    parser.add_argument("--quick", action="store_true", help="a minute: fewer texts and repeats")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cache", type=Path, default=Path(".cache"))
    arguments = parser.parse_args()
    console = Console()
    checkpoint = checkpoint_directory(arguments.cache)
    tokenizer = CheckpointTokenizer(checkpoint)
    prompts = spec_bench_prompts(6 if arguments.quick else 40)
    texts = [tokenizer.encode_chat(prompt.messages)[:_MOST_TOKENS] for prompt in prompts]
    with Progress(console=console) as progress:
        task = progress.add_task("loading", total=len(DTYPES))
        backends: dict[Dtype, Backend] = {}
        for dtype in DTYPES:
            backends[dtype] = load_backend(checkpoint, dtype=dtype, kv_budget_tokens=1024)
            progress.advance(task)
        figures = _laws(backends, texts, progress) | _passes(backends, 5 if arguments.quick else 30, progress)
    write(figures, arguments.json, console, "weights")


if __name__ == "__main__":
    main()
