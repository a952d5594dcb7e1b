"""The one table of drafters: committed tokens a round by category, drafting time, what these make of measured passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from benchmarks.head_peers import answers_index, draft_model_drafter, lookup_drafter, rest_drafter
from benchmarks.head_rounds import Outcome, drive, head_drafter
from benchmarks.head_trajectories import CATEGORIES, Trajectory
from models.backend import Backend
from proposer.heads.families import LoadedHead
from proposer.topology.plan import CompleteTree, GrownByValue, TreePlan
from proposer.training.dataset import Dataset
from retriever.query import SegmentSet

# Below this many training tokens a row of the table says that little was asked of the drafter.
WELL_TRAINED = 400_000
DEPTH = 8
# "wide" is EAGLE-2's own size (arXiv 2406.16858, section 5: 60 tokens, 10 a node, 6 levels): what a device verifies for the
# price of a few rows, and what its users call a head's tokens a round.
SHAPES: Mapping[str, TreePlan | GrownByValue] = {
    "chain": CompleteTree((1,)),
    "tree": GrownByValue(4, 5),
    "wide": GrownByValue(10, 6),
}


@dataclass(frozen=True)
class Row:
    """One drafter in one shape. nodes: candidates a round at most."""

    name: str
    note: str
    shape: str
    nodes: int
    outcome: Outcome


@dataclass(frozen=True)
class Drafters:
    """Who is compared. heads, drafts: by name. nodes: candidates by shape."""

    heads: Mapping[str, LoadedHead]
    drafts: Mapping[str, tuple[Backend, str]]
    rest: SegmentSet | None
    nodes: Mapping[str, int]

    @classmethod
    def of(
        cls,
        heads: Mapping[str, LoadedHead],
        drafts: Mapping[str, tuple[Backend, str]],
        datastores: Sequence[Dataset],
        nodes: Mapping[str, int],
    ) -> Drafters:
        return cls(heads, drafts, answers_index(datastores) if datastores else None, nodes)

    def rows(self, texts: Sequence[Trajectory], vocab_size: int) -> Iterator[Row]:
        """Each drafter over all texts, one after the other."""
        chain = self.nodes["chain"]
        yield Row("prompt_lookup", "", "chain", chain, drive(texts, lookup_drafter(chain)))
        for shape, plan in SHAPES.items():
            nodes = self.nodes[shape]
            if self.rest is not None:
                drafter = rest_drafter(self.rest, nodes, chain=shape == "chain")
                note = f"({self.rest.tokens // 1000}k tokens of the target's answers)"
                yield Row("rest", note, shape, nodes, drive(texts, drafter))
            for name, loaded in self.heads.items():
                drafter = head_drafter(loaded.head, plan, nodes=nodes, depth=DEPTH, eos_ids=loaded.manifest.eos_ids)
                note = trained(loaded.manifest.family, loaded.manifest.training)
                yield Row(name, note, shape, nodes, drive(texts, drafter))
            for name, (backend, note) in self.drafts.items():
                drafter = draft_model_drafter(backend, plan, nodes=nodes, depth=DEPTH, vocab_size=vocab_size)
                yield Row(name, note, shape, nodes, drive(texts, drafter))


def trained(what: str, facts: Mapping[str, object]) -> str:
    """A row's training budget and last loss, and whether that was little."""
    tokens, loss = int(str(facts.get("tokens", 0))), float(str(facts.get("loss") or "nan"))
    little = ", too little trained" if tokens < WELL_TRAINED else ""
    return f"({what}: {tokens // 1000}k tokens, loss {loss:.2f}{little})"


def tabulated(rows: Sequence[Row], times: Mapping[int, float], kind: str) -> tuple[Table, dict[str, float]]:
    """The table and its figures. times: milliseconds of a target pass by rows. kind: "greedy" or "t1"."""
    table = Table(
        "drafter", "shape", *CATEGORIES, "mean", "draft ms", "modelled speed-up", title=f"tokens a round, {kind}"
    )
    figures: dict[str, float] = {}
    for row in sorted(rows, key=lambda one: (one.name != "prompt_lookup", one.name != "rest", one.name, one.shape)):
        outcome, total = row.outcome, row.outcome.total
        draft_ms = 1e3 * total.draft_s / total.rounds
        cost = interpolated(times, row.nodes + 1) + draft_ms
        by_category = {name: tally.tokens_per_round for name, tally in outcome.by_category.items() if tally.rounds}
        speedup = times[1] / cost
        key = f"{row.name}_{row.shape}_{kind}"
        figures[f"{key}_tokens_per_round"] = outcome.mean_of_categories
        figures[f"{key}_draft_ms"] = draft_ms
        figures[f"{key}_modelled_speedup"] = outcome.mean_of_categories * speedup
        figures[f"{key}_modelled_speedup_min_category"] = min(by_category.values()) * speedup
        figures |= {f"{key}_{name}": value for name, value in by_category.items()}
        table.add_row(
            f"{row.name} {row.note}",
            f"{row.shape} {row.nodes}",
            *(f"{by_category[name]:.2f}" if name in by_category else "-" for name in CATEGORIES),
            f"{outcome.mean_of_categories:.2f}",
            f"{draft_ms:.1f}",
            f"{outcome.mean_of_categories * speedup:.2f}",
        )
    return table, figures


def interpolated(times: Mapping[int, float], rows: int) -> float:
    """Milliseconds of a pass of `rows`, on straight lines between what was measured."""
    counts = sorted(times)
    return float(np.interp(rows, counts, [times[count] for count in counts]))
