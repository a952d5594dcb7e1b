"""What laws and selection of one pass cost, and their share of the demo target's pass."""

from __future__ import annotations

import time

import numpy as np
import torch
from rich.progress import Progress
from tokenizers import Tokenizer

from benchmarks.verifier_acceptance import CHECKPOINT, CONTEXTS, NONE
from contracts.draft_law import DraftLaw, law_from_probabilities
from contracts.graph import CandidateGraph, Draw
from contracts.randomness import CoinChooser
from contracts.sampling import SamplingPolicy
from contracts.topology import ProbabilitySemantics, SamplingRelation
from models.backend import Backend, RowBlock
from models.laws import LawProcessor
from tests.unit.verifier.selection.cases import Q_BASED
from verifier.selection import VERIFIERS


def logit_rows(backend: Backend | None, vocab: int) -> torch.Tensor:
    """float32 [64, vocab] to time on: real rows of the demo model where its vocabulary fits, else Zipf laws of power 1.3."""
    if backend is not None and backend.info.vocab_size == vocab:
        tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
        rows = []
        for text in CONTEXTS[:4]:
            ids = np.array(tokenizer.encode(text).ids[:17], dtype=np.int64)
            slot = backend.allocate(len(ids))
            block = RowBlock(slot, ids, np.arange(len(ids)), np.arange(-1, len(ids) - 1))
            rows.append(backend.forward([block]).logits[0][1:17].clone())
            backend.release(slot)
        return torch.cat(rows)[:64]
    rng = np.random.default_rng(0)
    zipf = -1.3 * np.log(np.arange(1, vocab + 1))
    return torch.from_numpy(np.stack([rng.permutation(zipf) for _ in range(64)]).astype(np.float32))


def timing_graph(logits: torch.Tensor, rows: int, temperature: float, name: str) -> CandidateGraph:
    """rows - 1 candidates: the target's likeliest chain, then next-ranked siblings along it; q: its 64 likeliest tokens."""
    relation = Q_BASED.get(name, SamplingRelation.INDEPENDENT)
    depth = rows - 1 if name in SEQUENCES else min(8, rows - 1)
    tokens: list[int] = []
    parents: list[int] = []
    for index in range(rows - 1):
        parent = index % depth - 1
        tokens.append(int(torch.topk(logits[parent + 1], index // depth + 1).indices[-1]))
        parents.append(parent)
    laws: list[DraftLaw] = []
    for parent in range(-1, depth - 1):
        top = torch.topk(logits[parent + 1], 64)
        weights = torch.softmax(top.values.double() / (temperature or 1.0), 0).numpy() + 1e-6
        laws.append(law_from_probabilities(top.indices.numpy(), weights))
    return CandidateGraph(
        np.array(tokens, dtype=np.int64),
        np.array(parents, dtype=np.int64),
        (("draft",),) * len(tokens),
        tuple(Draw(parent, row, "draft", parent + 1) for row, parent in enumerate(parents)),
        tuple(laws),
        frozenset({ProbabilitySemantics.NORMALIZED_CONDITIONAL}),
        frozenset({relation}),
    )


def selection_ms(name: str, policy: SamplingPolicy, logits: torch.Tensor, repeats: int) -> float:
    """Median time of laws and selection of one pass of logits [rows, V] whose candidates are the likeliest tokens."""
    rows, vocab = logits.shape
    graph = timing_graph(logits, rows, policy.temperature, name)
    processor = LawProcessor(policy, vocab_size=vocab, prompt_len=4, eos_ids=(2,))
    prefix = np.arange(8)
    times = []
    for repeat in range(repeats + 1):
        started = time.perf_counter()
        laws = processor.laws(logits, prefix=prefix, token_ids=graph.token_ids, parents=graph.parents)
        VERIFIERS[name].select(graph, laws, CoinChooser(repeat, 8), prefix_len=8)
        times.append((time.perf_counter() - started) * 1e3)
    return float(np.median(times[1:]))


SAMPLERS = ("membership", *Q_BASED, "typical")
# With a truncated law, and (`_full`) with the whole vocabulary. Coupled verification is membership's code.
TIMED = {
    "greedy": ("greedy", SamplingPolicy(temperature=0.0)),
    **{name: (name, SamplingPolicy(temperature=0.8, top_p=0.95)) for name in SAMPLERS},
    **{f"{name}_full": (name, SamplingPolicy(temperature=1.0)) for name in SAMPLERS},
}
SEQUENCES = {"rejection", "block"}


def target_pass_ms(backend: Backend, rows: int, repeats: int) -> float:
    """Median time of a pass of `rows` rows over 256 committed ones."""
    slot = backend.allocate(256 + rows)
    ids = np.arange(256 + rows, dtype=np.int64) + 100
    backend.forward([RowBlock(slot, ids[:256], np.arange(256), np.arange(-1, 255), NONE)])
    backend.commit(slot, list(range(256)))
    times = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        backend.forward([RowBlock(slot, ids[256:], np.arange(256, 256 + rows), np.arange(-1, rows - 1))])
        times.append((time.perf_counter() - started) * 1e3)
        backend.rollback(slot)
    backend.release(slot)
    return float(np.median(times[1:]))


def times(progress: Progress, backend: Backend | None, quick: bool) -> dict[str, float]:
    out: dict[str, float] = {}
    repeats = 11 if quick else 60
    task = progress.add_task("selection time", total=6)
    for vocab in (49_152, 128_256):
        bank = logit_rows(backend, vocab)
        for rows in (1, 16, 64):
            for label, (name, policy) in TIMED.items():
                figure = f"select_ms_{label}_{rows}x{vocab // 1000}k"
                out[figure] = selection_ms(name, policy, bank[:rows], repeats)
            progress.advance(task)
    if backend is not None:
        out["target_pass_ms_16"] = target_pass_ms(backend, 16, repeats)
        defaults = max(out[f"select_ms_{label}_16x49k"] for label in ("greedy", "membership", "membership_full"))
        slowest = max(out[f"select_ms_{label}_16x49k"] for label in TIMED)
        out["selection_share_16"] = slowest / out["target_pass_ms_16"]
        out["selection_share_16_default_verifiers"] = defaults / out["target_pass_ms_16"]
    return out
