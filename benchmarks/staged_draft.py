"""Draft passes per proposed token, plain and staged, along the target's own greedy texts on held-out Spec-Bench prompts.

`python -m benchmarks.staged_draft --draft DIRECTORY [--per-category 3] [--tokens 64] [--chain 6] --json FILE`

Both drafters are asked for every round's chain, in turn; a round commits as far as the text goes along, and one more. That
both offer the same tokens is counted, not assumed. Times are CPU time of this process.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.head_trajectories import CATEGORIES, Trajectory, trajectories
from contracts.frontier import Frontier
from contracts.manifest import Manifest, RoundManifest, TargetIdentity
from contracts.ports import ProposeRequest
from contracts.sampling import SamplingPolicy
from contracts.topology import SamplingRelation
from models.backend import Backend
from models.checkpoint import tokenizer_digest
from models.load import load_backend
from proposer.draft_model import DraftModel, DraftModelSettings
from proposer.staged_draft import StagedDraft
from services.checkpoint_files import eos_ids
from services.cli.console import fetch_model
from services.settings import DEFAULT_MODEL, VerifierSettings, load
from services.text import CheckpointTokenizer

TAPS = ("final_norm", "layer:2", "layer:14", "layer:26")
POLICY = SamplingPolicy(temperature=0.0)


class CountedPasses:
    """A backend that counts the passes and rows that decide a draft's time; the prompt's are left out by the caller."""

    def __init__(self, backend: Backend) -> None:
        self._backend, self.passes, self.rows = backend, 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def forward(self, blocks: Sequence[Any], **options: Any) -> Any:
        self.passes += 1
        self.rows += sum(len(block.token_ids) for block in blocks)
        return self._backend.forward(blocks, **options)


@dataclass
class Tally:
    """Of one way on one category."""

    proposed: int = 0
    passes: int = 0
    rows: int = 0
    seconds: float = 0.0
    rounds: int = 0
    committed: int = 0


class Way:
    """One drafter and what it has cost."""

    def __init__(self, kind: type[DraftModel], backend: Backend, target: TargetIdentity) -> None:
        self.counted = CountedPasses(backend)
        self.source = kind(self.counted, DraftModelSettings(SamplingRelation.BEAM))  # type: ignore[arg-type]
        self.manifest = Manifest(
            target, POLICY.to_json(), (self.source.describe(),), verifier="greedy", exactness="exact",
            node_budget=64, max_depth=64,
        )  # fmt: skip
        self.tallies = {name: Tally() for name in CATEGORIES}

    def draft(self, session: str, prefix: np.ndarray, number: int, chain: int, tally: Tally | None) -> list[int]:
        """The chain after `prefix` int64 [L]; tally None: only the prompt is run."""
        coordinates = RoundManifest(
            self.manifest.hash, session, number, len(prefix), Frontier(prefix).digest, number, ()
        )
        passes, rows, started = self.counted.passes, self.counted.rows, time.process_time()
        proposal = self.source.propose(ProposeRequest("draft_model", coordinates, POLICY, prefix, chain, chain))
        if tally is not None:
            tally.seconds += time.process_time() - started
            tally.passes += self.counted.passes - passes
            tally.rows += self.counted.rows - rows
            tally.proposed += len(proposal.nodes)
        return [node.token for node in proposal.nodes]


def along(text: Trajectory, ways: Sequence[Way], chain: int) -> tuple[int, int]:
    """(rounds, rounds in which not all ways offered the same)."""
    tokens = text.tokens.numpy().astype(np.int64)
    for way in ways:
        way.source.open(text.name, way.manifest)
        way.draft(text.name, tokens[: text.answer_start], 0, 1, None)
    at, rounds, differing = text.answer_start, 0, 0
    while at < len(tokens):
        rounds += 1
        offers = []
        for way in ways:
            tally = way.tallies[text.kind]
            offers.append(way.draft(text.name, tokens[:at], rounds, min(chain, len(tokens) - at), tally))
            agreed = 0
            while agreed < len(offers[-1]) and offers[-1][agreed] == tokens[at + agreed]:
                agreed += 1
            tally.rounds += 1
            tally.committed += min(agreed + 1, len(tokens) - at)
        differing += any(offer != offers[0] for offer in offers)
        agreed = next((i for i, token in enumerate(offers[0]) if token != tokens[at + i]), len(offers[0]))
        at += agreed + 1
    for way in ways:
        way.source.close(text.name)
    return rounds, differing


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Draft passes per proposed token, plain and staged.")
    parser.add_argument("--draft", type=Path, required=True, help="checkpoint of a draft model for the default target")
    parser.add_argument("--per-category", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128, help="longest text that is made where none is kept")
    parser.add_argument("--chain", type=int, default=6)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    settings = load(VerifierSettings)
    checkpoint = fetch_model(DEFAULT_MODEL, settings.models_dir)
    target = load_backend(checkpoint, dtype="bfloat16", kv_budget_tokens=32768)
    texts = trajectories(
        settings.cache_dir / f"benchmark-heads-{given.per_category}-0",
        target,
        CheckpointTokenizer(checkpoint),
        taps=TAPS,
        eos_ids=eos_ids(checkpoint),
        per_category=given.per_category,
        max_new=given.tokens,
        temperature=0.0,
    )
    info = target.info
    identity = TargetIdentity(
        "target", info.checkpoint_digest, tokenizer_digest(checkpoint), info.vocab_size, info.context_length,
        info.dtype, "cpu", "here",
    )  # fmt: skip
    draft = load_backend(given.draft, dtype="bfloat16", kv_budget_tokens=65536, threads=1)
    ways = {"plain": Way(DraftModel, draft, identity), "staged": Way(StagedDraft, draft, identity)}
    rounds = differing = 0
    for text in texts:
        made, other = along(text, tuple(ways.values()), given.chain)
        rounds, differing = rounds + made, differing + other
    table = Table(
        "category", "drafts", "passes a token, plain", "staged", "rows a token, plain", "staged", "CPU, staged"
    )
    figures: dict[str, float | int] = {"chain": given.chain, "rounds": rounds, "rounds_with_other_tokens": differing}
    for category in CATEGORIES:
        plain, staged = (way.tallies[category] for way in ways.values())
        if not plain.proposed:
            continue
        for name, tally in (("plain", plain), ("staged", staged)):
            figures[f"{name}_passes_per_token_{category}"] = round(tally.passes / tally.proposed, 3)
            figures[f"{name}_cpu_ms_per_token_{category}"] = round(tally.seconds * 1e3 / tally.proposed, 3)
        table.add_row(
            category,
            str(plain.proposed),
            f"{plain.passes / plain.proposed:.2f}",
            f"{staged.passes / staged.proposed:.2f}",
            f"{plain.rows / plain.proposed:.2f}",
            f"{staged.rows / staged.proposed:.2f}",
            f"{staged.seconds / plain.seconds:.2f} of plain",
        )
    for name, way in ways.items():
        every = way.tallies.values()
        figures[f"{name}_passes_per_token"] = round(sum(t.passes for t in every) / sum(t.proposed for t in every), 3)
        figures[f"{name}_tokens_per_round"] = round(sum(t.committed for t in every) / sum(t.rounds for t in every), 3)
    Console().print(table)
    print(json.dumps(figures, indent=1))
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
