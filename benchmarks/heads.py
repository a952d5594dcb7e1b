"""Draft heads: committed tokens per round on held-out Spec-Bench prompts, chain and tree, greedy and T = 1.

    python -m benchmarks.heads [--quick] [--json FILE] [--head DIRECTORY ...] [--draft DIRECTORY ...] [--datastore DATA ...]
        [--medusa2 DIRECTORY ...] [--no-shipped]

All drafters draft along the same recorded texts of the target (benchmarks/head_trajectories.py): heads, draft models, prompt
lookup, and REST over the data sets named. A Medusa-2 package drafts along the texts of its own target, with prompt lookup
beside it, and how far that target is from the base is printed (benchmarks/adapted_target.py). Passes are timed in the same
run; the speed-up printed here is what these times make of the tokens per round, in process. The end-to-end figure through
the services is benchmarks.generate's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from benchmarks.adapted_target import AdaptedTarget, Distance
from benchmarks.figures import write
from benchmarks.head_table import SHAPES, Drafters, tabulated, trained
from benchmarks.head_trajectories import trajectories
from models.backend import Backend, RowBlock
from models.config import read_config
from models.load import load_backend
from models.weights import read_weights
from proposer.heads.families import Frozen, load_head
from proposer.heads.shipped import shipped_head
from proposer.training.dataset import Dataset
from proposer.training.run_draft import TRAINING
from services.checkpoint_files import eos_ids
from services.cli.console import fetch_model
from services.settings import DEFAULT_MODEL, VerifierSettings, load
from services.text import CheckpointTokenizer

TAPS = ("final_norm", "layer:2", "layer:14", "layer:26")
CHAIN, TREE, WIDE = 4, 12, 60
SHIPPED = "shipped_head"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer prompts, greedy only, the shipped head only")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--head", type=Path, action="append", default=[], help="a package to compare; repeatable")
    parser.add_argument("--draft", type=Path, action="append", default=[], help="a draft checkpoint; repeatable")
    parser.add_argument("--datastore", type=Path, action="append", default=[], help="data sets that REST looks up")
    parser.add_argument("--medusa2", type=Path, action="append", default=[], help="a Medusa-2 package; repeatable")
    parser.add_argument("--no-shipped", action="store_true", help="leave the shipped head out")
    parser.add_argument("--per-category", type=int, default=8, help="prompts of each category")
    parser.add_argument("--nodes", type=int, default=TREE, help="candidates of a tree")
    parser.add_argument("--chain", type=int, default=CHAIN, help="candidates of a chain")
    arguments = parser.parse_args()
    settings = load(VerifierSettings)
    checkpoint = fetch_model(DEFAULT_MODEL, settings.models_dir)
    console = Console()
    tokenizer = CheckpointTokenizer(checkpoint)
    backend = load_backend(checkpoint, dtype="bfloat16", kv_budget_tokens=32768)
    drafters = compared(arguments, checkpoint, tokenizer)
    adapted = [
        AdaptedTarget.of(
            path, checkpoint, settings.cache_dir, tokenizer_digest=tokenizer.digest, eos_ids=eos_ids(checkpoint)
        )
        for path in ([] if arguments.quick else arguments.medusa2)
    ]
    times = pass_times(backend, tuple(sorted({1, CHAIN + 1, arguments.chain + 1, arguments.nodes + 1, WIDE + 1})))
    figures: dict[str, float | int | str | bool] = {
        f"target_pass_ms_{rows}_rows": value for rows, value in times.items()
    }
    per_category = 3 if arguments.quick else arguments.per_category
    for temperature in (0.0,) if arguments.quick else (0.0, 1.0):
        kind = "greedy" if temperature == 0 else "t1"
        written = partial(
            trajectories,
            tokenizer=tokenizer,
            taps=TAPS,
            eos_ids=eos_ids(checkpoint),
            per_category=per_category,
            max_new=128,
            temperature=temperature,
        )
        cache = settings.cache_dir / f"benchmark-heads-{per_category}-{temperature:g}"
        texts = written(cache, backend)
        rows = list(drafters.rows(texts, backend.info.vocab_size))
        for own in adapted:
            digest = own.target.info.checkpoint_digest[:8]
            rows += own.rows(written(cache.with_name(f"{cache.name}-{digest}"), own.target), drafters.nodes)
        table, found = tabulated(rows, times, kind)
        console.print(table)
        figures |= found
        for own in adapted:
            distance = Distance.over(backend, own.target, texts)
            figures |= {f"{own.name}_{name}_{kind}": value for name, value in asdict(distance).items()}
            console.print(
                f"{own.name}'s target over the base's answers, {kind}: {distance.same_choice:.1%} of the likeliest tokens "
                f"are the base's, perplexity {distance.perplexity:.3f} (base {distance.base_perplexity:.3f})"
            )
    best = [figures.get(f"{SHIPPED}_{shape}_greedy_tokens_per_round") for shape in SHAPES]
    known = [float(value) for value in best if value is not None]
    if known:
        # Of the widest tree, as published figures of heads are; the others' stand beside it.
        figures["shipped_head_tokens_per_round_greedy"] = max(known)
    write(figures, arguments.json, console, "draft heads")


def compared(arguments: argparse.Namespace, checkpoint: Path, tokenizer: CheckpointTokenizer) -> Drafters:
    """The shipped head where it is wanted, and what the command line adds to it."""
    config = read_config(checkpoint)
    frozen = Frozen.of(config, read_weights(checkpoint, config, torch.bfloat16))
    shipped = None if arguments.no_shipped else shipped_head(DEFAULT_MODEL)
    directories = {} if shipped is None else {SHIPPED: shipped}
    if not arguments.quick:
        directories |= {path.name: path for path in arguments.head}
    heads = {
        name: load_head(path, checkpoint, tokenizer_digest=tokenizer.digest, eos_ids=eos_ids(checkpoint), frozen=frozen)
        for name, path in directories.items()
    }
    drafts = {}
    for path in [] if arguments.quick else arguments.draft:
        facts = json.loads((path / TRAINING).read_text(encoding="utf-8"))
        draft = load_backend(path, dtype="bfloat16", kv_budget_tokens=8192)
        drafts[path.name] = (draft, trained(f"layers {facts['layers']}", facts))
    datastores = [Dataset(path) for path in arguments.datastore]
    return Drafters.of(heads, drafts, datastores, {"chain": arguments.chain, "tree": arguments.nodes, "wide": WIDE})


def pass_times(backend: Backend, counts: tuple[int, ...], context: int = 300) -> dict[int, float]:
    """Median milliseconds of a target pass by rows, behind `context` committed rows; counts interleaved."""
    slot = backend.allocate(context + max(counts))
    ids = np.arange(context, dtype=np.int64) + 100
    backend.forward([RowBlock(slot, ids, np.arange(context), np.arange(context) - 1, np.zeros(0, np.int64))])
    backend.commit(slot, range(context))
    taken: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(15):
        for count in counts:
            rows = np.arange(count, dtype=np.int64)
            started = time.perf_counter()
            backend.forward([RowBlock(slot, rows + 500, context + rows, rows - 1)])
            taken[count].append(1e3 * (time.perf_counter() - started))
            backend.rollback(slot)
    backend.release(slot)
    return {count: statistics.median(values) for count, values in taken.items()}


if __name__ == "__main__":
    main()
