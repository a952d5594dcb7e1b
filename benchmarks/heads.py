"""Draft heads: committed tokens per round on held-out Spec-Bench prompts, chain and tree, greedy and T = 1.

    python -m benchmarks.heads [--quick] [--json FILE] [--head DIRECTORY ...]

All heads draft along the same recorded texts of the target (benchmarks/head_trajectories.py), beside prompt lookup. Passes
are timed in the same run; the speed-up printed here is what these times make of the tokens per round, in process. The
end-to-end figure through the services is benchmarks.generate's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.figures import write
from benchmarks.head_rounds import Outcome, drive, head_drafter, lookup_drafter
from benchmarks.head_trajectories import CATEGORIES, trajectories
from models.backend import Backend, RowBlock
from models.config import read_config
from models.load import load_backend
from models.weights import read_weights
from proposer.heads.families import Frozen, LoadedHead, load_head
from proposer.heads.shipped import shipped_head
from proposer.topology.plan import CompleteTree, GrownByValue
from services.checkpoint_files import eos_ids
from services.cli.console import fetch_model
from services.settings import DEFAULT_MODEL, VerifierSettings, load
from services.text import CheckpointTokenizer

TAPS = ("final_norm", "layer:2", "layer:14", "layer:26")
# Below this many training tokens a row of the table says that little was asked of the head.
WELL_TRAINED = 400_000
CHAIN, TREE = 4, 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer prompts, greedy only, the shipped head only")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--head", type=Path, action="append", default=[], help="a package to compare; repeatable")
    parser.add_argument("--nodes", type=int, default=TREE, help="candidates of a tree")
    parser.add_argument("--chain", type=int, default=CHAIN, help="candidates of a chain")
    arguments = parser.parse_args()
    settings = load(VerifierSettings)
    checkpoint = fetch_model(DEFAULT_MODEL, settings.models_dir)
    console = Console()
    tokenizer = CheckpointTokenizer(checkpoint)
    backend = load_backend(checkpoint, dtype="bfloat16", kv_budget_tokens=32768)
    config = read_config(checkpoint)
    frozen = Frozen.of(config, read_weights(checkpoint, config, torch.bfloat16))
    shipped = shipped_head(DEFAULT_MODEL)
    directories = ([] if shipped is None else [shipped]) + ([] if arguments.quick else arguments.head)
    heads = [load_head(one, checkpoint, tokenizer_digest=tokenizer.digest, frozen=frozen) for one in directories]
    figures: dict[str, float | int | str | bool] = {}
    times = pass_times(backend, (1, CHAIN + 1, arguments.nodes + 1))
    figures |= {f"target_pass_ms_{rows}_rows": value for rows, value in times.items()}
    for temperature in (0.0,) if arguments.quick else (0.0, 1.0):
        per_category = 3 if arguments.quick else 8
        texts = trajectories(
            settings.cache_dir / f"benchmark-heads-{per_category}-{temperature:g}",
            backend,
            tokenizer,
            taps=TAPS,
            eos_ids=eos_ids(checkpoint),
            per_category=per_category,
            max_new=128,
            temperature=temperature,
        )
        kind = "greedy" if temperature == 0 else "t1"
        table = Table(
            "drafter", "shape", *CATEGORIES, "mean", "draft ms", "modelled speed-up", title=f"tokens a round, {kind}"
        )
        rows: list[tuple[str, str, str, int, Outcome]] = [
            ("prompt_lookup", "", "chain", CHAIN, drive(texts, lookup_drafter(CHAIN)))
        ]
        for loaded, directory in zip(heads, directories, strict=True):
            name, note = directory.name if directory != shipped else "shipped_head", trained(loaded)
            for shape, plan, nodes in (
                ("chain", CompleteTree((1,)), arguments.chain),
                ("tree", GrownByValue(4, 5), arguments.nodes),
            ):
                drafter = head_drafter(loaded.head, plan, nodes=nodes, depth=8, eos_ids=loaded.manifest.eos_ids)
                rows.append((name, note, shape, nodes, drive(texts, drafter)))
        for name, note, shape, nodes, outcome in rows:
            total = outcome.total
            draft_ms = 1e3 * total.draft_s / total.rounds
            cost = interpolated(times, nodes + 1) + draft_ms
            speedups = {
                one: tally.tokens_per_round * times[1] / cost
                for one, tally in outcome.by_category.items()
                if tally.rounds
            }
            key = f"{name}_{shape}_{kind}"
            figures[f"{key}_tokens_per_round"] = outcome.mean_of_categories
            figures[f"{key}_draft_ms"] = draft_ms
            figures[f"{key}_modelled_speedup_min_category"] = min(speedups.values())
            for one, tally in outcome.by_category.items():
                figures[f"{key}_{one}"] = tally.tokens_per_round
            table.add_row(
                f"{name} {note}",
                f"{shape} {nodes}",
                *(f"{outcome.by_category[one].tokens_per_round:.2f}" for one in CATEGORIES),
                f"{outcome.mean_of_categories:.2f}",
                f"{draft_ms:.1f}",
                f"{outcome.mean_of_categories * times[1] / cost:.2f}",
            )
        console.print(table)
    best = [
        value
        for name, value in figures.items()
        if name.startswith("shipped_head_") and name.endswith("greedy_tokens_per_round")
    ]
    if best:
        figures["shipped_head_tokens_per_round_greedy"] = max(float(value) for value in best)
    write(figures, arguments.json, console, "draft heads")


def trained(loaded: LoadedHead) -> str:
    """The row's training budget and last loss, and whether that was little."""
    facts = loaded.manifest.training
    tokens, loss = int(facts.get("tokens", 0)), float(facts.get("loss") or float("nan"))
    little = ", too little trained" if tokens < WELL_TRAINED else ""
    return f"({loaded.manifest.family}: {tokens // 1000}k tokens, loss {loss:.2f}{little})"


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


def interpolated(times: dict[int, float], rows: int) -> float:
    """Milliseconds of a pass of `rows`, on straight lines between what was measured."""
    counts = sorted(times)
    return float(np.interp(rows, counts, [times[count] for count in counts]))


if __name__ == "__main__":
    main()
