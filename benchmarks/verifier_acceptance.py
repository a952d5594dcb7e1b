"""Acceptance of the verifiers side by side, by exact expectation over all drafts and coins of the shipped code.

Real laws: the demo checkpoint as target and, as draft, the same model given the last DRAFT_CONTEXT tokens only, cut to its
likeliest few tokens; two drafts in sequence, or two siblings. Common laws: eight tokens, the draft a noised target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from rich.progress import Progress
from tokenizers import Tokenizer

from contracts.draft_law import DraftLaw, law_from_probabilities
from contracts.graph import CandidateGraph, merge_by_full_prefix
from contracts.randomness import CoinChooser, Purpose
from contracts.sampling import SamplingPolicy
from contracts.topology import SamplingRelation, path_to
from models.backend import Backend, RowBlock
from models.law_rows import Law
from models.laws import LawProcessor, TargetLaws
from tests.helpers.enumeration import Branching, Drafter, EnumeratedChooser, EnumeratedCoins, branches, propose
from tests.unit.verifier.selection.cases import Q_BASED
from verifier.selection import VERIFIERS

CHECKPOINT = Path(".cache/models/smollm2-135m-instruct")
DRAFT_CONTEXT = 16
TEMPERATURES = (0.3, 0.7, 1.0)
NONE = np.zeros(0, dtype=np.int64)
CONTEXTS = (
    "The capital of France is a city known for its museums, its food and its long history. The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) +",
    "Once upon a time there was a small village at the edge of a deep forest, and in that village lived",
    "To make bread you need flour, water, salt and yeast. First, mix the flour and the salt in a large bowl. Then",
    "The three laws of motion were published in 1687. The first law states that an object at rest",
    "import numpy as np\n\nx = np.zeros(10)\nfor i in range(10):\n    x[i] =",
    "Dear customer, thank you for your message. We are sorry to hear that your order has not",
    "A list of colours: red, orange, yellow, green, blue,",
    "In 1969 two astronauts walked on the Moon for the first time, while a third stayed in orbit. Their names were",
    "The quick brown fox jumps over the lazy dog. The quick brown fox jumps over the",
    "Water boils at one hundred degrees Celsius at sea level, but on high mountains it boils at",
    "SELECT name, price FROM products WHERE price > 10 ORDER BY",
)


class AcceptanceChooser(EnumeratedChooser):
    """Branches on accept coins only: the closing token does not change how many were accepted."""

    def categorical(self, probabilities: object, purpose: Purpose, source: str, draw: int) -> int:
        return 0


def enumerated_acceptance(name: str, widths: tuple[int, ...], world: Laws, relation: SamplingRelation) -> float:
    """Exact expected number of accepted tokens of one round, over all drafts and coins."""
    drafter = Drafter("draft", widths, world.draft, relation)
    total = 0.0

    def drawn(tree: Branching) -> CandidateGraph:
        return merge_by_full_prefix([propose(drafter, EnumeratedCoins(tree), world.vocab)], budget=64)

    for weight, graph in branches(drawn):
        laws = AtRows(world, graph)
        if name == "membership":
            total += weight * _membership(graph, laws)
            continue
        for inner, accepted in branches(
            lambda tree, g=graph, t=laws: len(  # type: ignore[misc]
                VERIFIERS[name].select(g, t, AcceptanceChooser(tree), prefix_len=1).rows
            )
        ):
            total += weight * inner * accepted
    return total


def _membership(graph: CandidateGraph, laws: TargetLaws) -> float:
    """Expected accepted path of membership: each row is reached with the product of target probabilities."""
    reach: list[float] = []
    for token, parent in zip(graph.token_ids.tolist(), graph.parents.tolist(), strict=True):
        reach.append((reach[parent] if parent >= 0 else 1.0) * laws.probability(parent, token))
    return sum(reach)


class Laws:
    """Target and draft laws after candidate prefixes of up to one token."""

    def __init__(
        self, vocab: int, target: Callable[[tuple[int, ...]], Law], draft: Callable[[tuple[int, ...]], DraftLaw]
    ) -> None:
        self.vocab, self.target, self.draft = vocab, target, draft


class AtRows(TargetLaws):
    def __init__(self, world: Laws, graph: CandidateGraph) -> None:
        super().__init__(world.vocab, lambda row: world.target(self._path(row)), lambda row: 0)
        self._graph = graph

    def _path(self, row: int) -> tuple[int, ...]:
        path = tuple(self._graph.token_ids[list(path_to(self._graph.parents, row))].tolist())
        # After two tokens only the closing token is left to draw, and which it is does not count: any law will do.
        return path if len(path) < 2 else ()


def logits_after(backend: Backend, context: np.ndarray, children: np.ndarray) -> torch.Tensor:
    """float32 [1 + C, V]: logits after the context, and after each child token that may follow it."""
    slot = backend.allocate(len(context) + len(children) + 1)
    ids = np.concatenate([context, children]).astype(np.int64)
    last = len(context) - 1
    positions = np.concatenate([np.arange(last + 1), np.full(len(children), last + 1)])
    parents = np.concatenate([np.arange(-1, last), np.full(len(children), last)])
    wanted = np.arange(last, last + 1 + len(children))
    logits = backend.forward([RowBlock(slot, ids, positions, parents, wanted)]).logits[0]
    backend.release(slot)
    return logits


def real_worlds(backend: Backend, context: np.ndarray, support: int) -> Iterator[tuple[float, Laws]]:
    """Per temperature the laws after `context`; the second draft follows any of the first's `support` tokens."""
    short = context[-DRAFT_CONTEXT:]
    first = torch.topk(logits_after(backend, short, NONE)[0], support).indices.numpy()
    target, draft = logits_after(backend, context, first), logits_after(backend, short, first)
    rows = {(): -1, **{(token,): i for i, token in enumerate(first.tolist())}}
    for temperature in TEMPERATURES:
        processor = LawProcessor(
            SamplingPolicy(temperature=temperature), vocab_size=target.shape[1], prompt_len=len(context), eos_ids=()
        )
        parents = np.full(len(first), -1)
        p, q = (processor.laws(logits, prefix=context, token_ids=first, parents=parents) for logits in (target, draft))
        drafts = {prefix: q.draft_law(row, support=support) for prefix, row in rows.items()}
        targets = {prefix: p.row(row) for prefix, row in rows.items()}
        yield temperature, Laws(target.shape[1], targets.__getitem__, drafts.__getitem__)


def common_worlds() -> Iterator[Laws]:
    """Synthetic laws over 8 tokens: the draft is the target of another temperature, noised."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        prefixes: list[tuple[int, ...]] = [(), *((token,) for token in range(8))]
        table = {prefix: rng.normal(size=8) * 2 for prefix in prefixes}
        noise = {prefix: rng.normal(size=8) for prefix in table}

        def target(prefix: tuple[int, ...], known: dict[tuple[int, ...], np.ndarray] = table) -> Law:
            weights = np.exp(known[prefix])
            return TargetLaws.from_probabilities((weights / weights.sum())[None]).row(-1)

        def draft(
            prefix: tuple[int, ...],
            known: dict[tuple[int, ...], np.ndarray] = table,
            by: dict[tuple[int, ...], np.ndarray] = noise,
        ) -> DraftLaw:
            return law_from_probabilities(np.arange(8), np.exp(known[prefix] + by[prefix]))

        yield Laws(8, target, draft)


def acceptance(world: Laws) -> dict[str, float]:
    """Expected accepted tokens: `name_seq` of two drafts in sequence, `name_set` of two siblings."""
    independent, without = SamplingRelation.INDEPENDENT, SamplingRelation.WITHOUT_REPLACEMENT
    out = {
        f"{name}_seq": enumerated_acceptance(name, (1, 1), world, independent)
        for name in ("rejection", "block", "membership")
    }
    for name in ("specinfer", "spectr", "sequoia", "traversal"):
        out[f"{name}_set"] = enumerated_acceptance(name, (2,), world, Q_BASED[name])
    out["membership_iid_set"] = enumerated_acceptance("membership", (2,), world, independent)
    out["membership_wor_set"] = enumerated_acceptance("membership", (2,), world, without)
    out["gumbel_coupled_set"] = _coupled(world, 2)
    return out


def _coupled(world: Laws, width: int, positions: int = 200) -> float:
    """Share of noise keys under which the target's sample is among the draft's `width` noisiest (sampled)."""
    law, target, hits = world.draft(()), world.target(()), 0
    draft = TargetLaws.from_probabilities(law.dense(world.vocab)[None]).row(-1)
    for key in range(positions):
        noise = CoinChooser(5, 0).sample_key(key)
        hits += target.noisy_argmax(noise) in draft.noisy_top(noise, width)
    return hits / positions


def acceptances(progress: Progress, backend: Backend | None, quick: bool) -> dict[str, float | int]:
    by_name: dict[str, list[float]] = {}
    contexts = CONTEXTS[:4] if quick else CONTEXTS
    task = progress.add_task("acceptance", total=6 + (len(contexts) if backend else 0))
    for world in common_worlds():
        for name, value in acceptance(world).items():
            by_name.setdefault(f"accept_common_{name}", []).append(value)
        progress.advance(task)
    gaps, wor_gaps = [], []
    if backend is not None:
        tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
        for text in contexts:
            ids = np.array(tokenizer.encode(text).ids, dtype=np.int64)
            for temperature, world in real_worlds(backend, ids, 6 if quick else 12):
                found = acceptance(world)
                gaps.append(found["block_seq"] - found["rejection_seq"])
                if temperature == 0.3:
                    wor_gaps.append(found["sequoia_set"] - found["specinfer_set"])
                for name, value in found.items():
                    by_name.setdefault(f"accept_t{temperature}_{name}", []).append(value)
            progress.advance(task)
    out: dict[str, float | int] = {name: float(np.mean(values)) for name, values in by_name.items()}
    if gaps:
        out |= {"real_contexts": len(contexts), "real_block_minus_rejection_min": min(gaps)}
        out |= {"real_sequoia_minus_specinfer_t0.3_min": min(wor_gaps)}
    return out
