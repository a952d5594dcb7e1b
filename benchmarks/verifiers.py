"""Verifiers: proof by enumeration, a statistical test over real coins, acceptance side by side, and what selection costs.

    python -m benchmarks.verifiers [--quick] [--phase times|proof|acceptance] [--json FILE]

Exactness and acceptance are enumerated, not sampled: every branch of the shipped drawing and selection code. The demo
checkpoint (converted from a Q4_1 file) gives real laws and the pass that selection is compared with. Times are medians;
laws and selection run on one thread.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress

from benchmarks.figures import write
from benchmarks.verifier_acceptance import CHECKPOINT, acceptances
from benchmarks.verifier_times import times
from models.load import load_backend
from tests.unit.verifier.selection import design, rounds
from tests.unit.verifier.selection.cases import Case, exact_cases
from tests.unit.verifier.selection.wrong_variants import enumerated, sampled

PHASES = ("times", "proof", "acceptance")


def exactness(progress: Progress, quick: bool) -> dict[str, float | int]:
    cases = list(exact_cases())[:: 6 if quick else 1]
    task = progress.add_task("enumeration", total=len(cases))
    worst: dict[str, float] = {}
    for case in cases:
        worst[case.verifier] = max(worst.get(case.verifier, 0.0), case.error())
        progress.advance(task)
    gaps = [
        Case("block", kind, 3, (1, 1), seed).run().expected - Case("rejection", kind, 3, (1, 1), seed).run().expected
        for kind in ("random", "peaked", "zeros")
        for seed in range(4)
    ]
    out: dict[str, float | int] = {"enumerated_cases": len(cases), "max_marginal_error": max(worst.values())}
    out |= {f"max_marginal_error_{name}": error for name, error in worst.items()}
    return out | {"block_minus_rejection_min": min(gaps)}


def statistics(progress: Progress, quick: bool) -> dict[str, float | int | bool]:
    """The design of tests/unit/verifier/selection/design.py: its confirmation plan, with `quick` the test suite's."""
    world, alpha, plan = rounds.transformer_world(), design.ALPHA, design.SUITE if quick else design.CONFIRMATION
    task = progress.add_task("generations", total=len(rounds.RELATIONS) + len(sampled()) + 1)

    def smallest_p(method: rounds.Method) -> float:
        p = min(design.p_values(world, design.samples(world, method, plan.count, plan.first_seed)))
        progress.advance(task)
        return p

    ps = {name: smallest_p(rounds.shipped_method(name)) for name in rounds.RELATIONS}
    caught = {name: error > 1e-4 for name, error in enumerated()}
    for name, method in sampled().items():
        caught[f"{name} (sampled)"] = smallest_p(method) <= alpha
    keyed = replace(rounds.shipped_method("block"), chooser_of=rounds.PositionKeyed, coins_of=rounds.PositionKeyedDraws)
    flips = rounds.coin_flip_world()
    drawn = design.samples(flips, keyed, plan.flips, plan.first_seed, design.FLIP_HORIZON)
    caught["position-keyed coins (sampled)"] = min(design.p_values(flips, drawn)) <= alpha
    progress.advance(task)
    return {
        "chi_square_min_p": min(ps.values()),
        "chi_square_alpha": alpha,
        "chi_square_samples_per_verifier": plan.count,
        "chi_square_first_seed": plan.first_seed,
        **{f"chi_square_p_{name}": p for name, p in ps.items()},
        "wrong_variants": len(caught),
        "wrong_variants_caught": sum(caught.values()),
        "all_wrong_variants_caught": all(caught.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer cases and contexts, under two minutes")
    parser.add_argument("--phase", choices=PHASES, action="append", help="only this one (times want a quiet machine)")
    parser.add_argument("--json", type=Path, help="write the figures there as flat JSON")
    arguments = parser.parse_args()
    console = Console()
    torch.set_num_threads(1)
    backend = load_backend(CHECKPOINT, dtype="bfloat16") if CHECKPOINT.exists() else None
    if backend is None:
        console.print(f"{CHECKPOINT} is absent: no acceptance on real laws, no selection share")
    figures: dict[str, float | int | str | bool] = {"quick": arguments.quick, "threads": torch.get_num_threads()}
    if backend is not None:
        figures["target"] = f"smollm2-135m-instruct from Q4_1, {backend.info.dtype}, {backend.info.backend}"
    with Progress(console=console) as progress:
        phases = arguments.phase or PHASES
        if "times" in phases:
            figures |= times(progress, backend, arguments.quick)
        if "proof" in phases:
            figures |= exactness(progress, arguments.quick)
            figures |= statistics(progress, arguments.quick)
        if "acceptance" in phases:
            figures |= acceptances(progress, backend, arguments.quick)
    figures = {name: value.item() if isinstance(value, np.generic) else value for name, value in figures.items()}
    write(figures, arguments.json, console, "verifiers")


if __name__ == "__main__":
    main()
