"""Whole generations over a tiny real transformer: shipped drawing, merging, laws and selection, with the real coin keys.

The vocabulary has three tokens, so the exact law of every continuation is known, and every conditional law is computed
once. What the generations are tested against, and with which power, is in design.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from contracts.draft_law import DraftLaw, law_from_probabilities
from contracts.drawing import DraftCoins, draw_shared_noise
from contracts.graph import CandidateGraph, merge_by_full_prefix
from contracts.proposal import Proposal, ProposalNode
from contracts.randomness import Chooser, CoinChooser, Purpose
from contracts.sampling import SamplingPolicy
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology, path_to
from models.law_rows import Law, SparseLaw
from models.laws import LawProcessor, TargetLaws
from tests.helpers.enumeration import Drafter, Prefix, propose
from tests.unit.verifier.selection.cases import laws
from verifier.selection import VERIFIERS, Selection

T = TypeVar("T")
VOCAB = 3
HORIZON = 6
LOOKAHEAD = 3
PROMPT = (0,)
POLICY = SamplingPolicy(temperature=0.9, top_p=0.97)

RELATIONS = {
    "membership": SamplingRelation.INDEPENDENT,
    "gumbel_coupled": SamplingRelation.SHARED_NOISE,
    "rejection": SamplingRelation.INDEPENDENT,
    "block": SamplingRelation.INDEPENDENT,
    "spectr": SamplingRelation.INDEPENDENT,
    "specinfer": SamplingRelation.INDEPENDENT,
    "sequoia": SamplingRelation.WITHOUT_REPLACEMENT,
    "traversal": SamplingRelation.WITHOUT_REPLACEMENT,
}
WIDTHS = {"rejection": (1, 1, 1), "block": (1, 1, 1), "gumbel_coupled": (1, 1, 1)}
DEFAULT_WIDTHS = (2, 1)


class TinyTransformer(nn.Module):
    """A causal transformer with learned positions; random weights, sharp enough that laws differ by prefix."""

    def __init__(self, *, layers: int, seed: int, sharpness: float) -> None:
        super().__init__()
        width = 16
        generator_state = torch.get_rng_state()
        torch.manual_seed(seed)
        self.tokens = nn.Embedding(VOCAB, width)
        self.positions = nn.Embedding(32, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, VOCAB)
        torch.set_rng_state(generator_state)
        self.sharpness = sharpness
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        """float32 [B, L, V] logits for int64 [B, L]."""
        length = ids.shape[1]
        x = self.tokens(ids) + self.positions(torch.arange(length))
        hidden = torch.triu(torch.full((length, length), -torch.inf), 1)
        for block in self.blocks:
            x = block(x, src_mask=hidden)
        logits: Tensor = self.head(x) * self.sharpness
        return logits


class ModelLaws(dict[Prefix, SparseLaw]):
    """The processed law after each continuation of fewer than HORIZON + LOOKAHEAD tokens, made when first asked for.

    The logits of all of them come from one batch of real forward passes.
    """

    def __init__(self, model: TinyTransformer) -> None:
        super().__init__()
        depth = HORIZON + LOOKAHEAD - 1
        grid = np.array(list(np.ndindex(*[VOCAB] * depth)))
        ids = np.concatenate([np.full((len(grid), 1), PROMPT[0]), grid], axis=1)
        with torch.no_grad():
            self._logits = torch.cat([model(torch.from_numpy(part)) for part in np.array_split(ids, 8)])
        self._processor = LawProcessor(POLICY, vocab_size=VOCAB, prompt_len=len(PROMPT), eos_ids=())
        self._depth = depth

    def __missing__(self, prefix: Prefix) -> SparseLaw:
        padded = (*prefix, *[0] * (self._depth - len(prefix)))
        index = int(np.ravel_multi_index(padded, [VOCAB] * self._depth))
        none = np.zeros(0, dtype=np.int64)
        row = self._logits[index, len(prefix)][None]
        law = self._processor.laws(row, prefix=np.array([*PROMPT, *prefix]), token_ids=none, parents=none).row(-1)
        assert isinstance(law, SparseLaw)
        self[prefix] = law
        return law


class DraftLaws(dict[Prefix, DraftLaw]):
    """The integer draft law after each continuation, from a draft model's processed laws."""

    def __init__(self, laws: dict[Prefix, SparseLaw]) -> None:
        super().__init__()
        self._laws = laws

    def __missing__(self, prefix: Prefix) -> DraftLaw:
        law = self[prefix] = law_from_probabilities(self._laws[prefix].ids, self._laws[prefix].probabilities)
        return law


class Everywhere(dict[Prefix, T]):
    """One value after every prefix."""

    def __init__(self, value: T) -> None:
        super().__init__()
        self._value = value

    def __missing__(self, prefix: Prefix) -> T:
        return self._value


@dataclass(frozen=True)
class World:
    """All laws of target and draft by continuation, the prompt left out."""

    target: dict[Prefix, SparseLaw]
    draft: dict[Prefix, DraftLaw]

    def probability(self, tokens: Prefix) -> float:
        """Of a continuation under the target."""
        out = 1.0
        for i, token in enumerate(tokens):
            out *= self.target[tokens[:i]].of(token)
        return out


@lru_cache(maxsize=1)
def transformer_world() -> World:
    """Target of two layers, draft of one, nothing trained: they disagree often."""
    target = ModelLaws(TinyTransformer(layers=2, seed=1, sharpness=2.0))
    return World(target, DraftLaws(ModelLaws(TinyTransformer(layers=1, seed=12, sharpness=2.0))))


@lru_cache(maxsize=1)
def coin_flip_world() -> World:
    """p = (.7, .3) and q = (.3, .7) after every prefix: where position-keyed coins are known to bias block verification."""
    p = SparseLaw(np.array([0, 1]), np.array([0.7, 0.3]), VOCAB)
    return World(Everywhere(p), Everywhere(law_from_probabilities([0, 1], [0.3, 0.7])))


@lru_cache(maxsize=1)
def skewed_world() -> World:
    """One p and one q over three tokens after every prefix, of the enumerated cases: far apart, and no law is a point."""
    target, draft = laws("random", 0, VOCAB)
    return World(Everywhere(SparseLaw(np.arange(VOCAB), target(()), VOCAB)), Everywhere(draft(())))


def _shared_noise(world: World, published: Prefix, widths: Sequence[int], seed: int) -> Proposal:
    nodes: list[ProposalNode] = []
    prefix, parent = published, -1
    for depth in range(1, len(widths) + 1):
        law = world.draft[prefix]
        position = len(PROMPT) + len(prefix)
        (token,) = draw_shared_noise(law.token_ids, np.log(law.weights), 1, seed=seed, position=position)
        nodes.append(ProposalNode(token, parent, depth, "a", "", score=law.probability(token)))
        prefix, parent = (*prefix, token), len(nodes) - 1
    return Proposal(
        "a",
        tuple(nodes),
        ProbabilitySemantics.SCORE_ONLY,
        SamplingRelation.SHARED_NOISE,
        Topology.SEQUENCE,
        "",
    )


class GraphLaws(TargetLaws):
    """The world's target laws at the rows of a graph."""

    def __init__(self, world: World, published: Prefix, graph: CandidateGraph) -> None:
        def law_of(row: int) -> Law:
            path = graph.token_ids[list(path_to(graph.parents, row))].tolist()
            return world.target[(*published, *path)]

        super().__init__(VOCAB, law_of, lambda row: int(np.argmax(law_of(row).dense())))


Select = Callable[[CandidateGraph, TargetLaws, Chooser, int], Selection]


@dataclass(frozen=True)
class Method:
    """How one generation runs: shipped parts, or a wrong variant's stand-ins."""

    relation: SamplingRelation
    widths: tuple[int, ...]
    select: Select
    chooser_of: Callable[[int, int], Chooser] = CoinChooser
    coins_of: Callable[[int, int, str], DraftCoins] = DraftCoins


def shipped_method(name: str) -> Method:
    verifier = VERIFIERS[name]
    return Method(
        RELATIONS[name],
        WIDTHS.get(name, DEFAULT_WIDTHS),
        lambda graph, laws, chooser, prefix_len: verifier.select(graph, laws, chooser, prefix_len=prefix_len),
    )


def drafter_of(world: World, method: Method, published: Prefix) -> Drafter:
    """The draft model as a source after `published`."""
    return Drafter("a", method.widths, lambda path: world.draft[(*published, *path)], method.relation)


def generate(world: World, method: Method, seed: int, horizon: int = HORIZON) -> tuple[Prefix, int]:
    """(first `horizon` tokens, rounds) of one generation."""
    published: Prefix = ()
    rounds = 0
    while len(published) < horizon:
        frontier = len(PROMPT) + len(published)
        if method.relation is SamplingRelation.SHARED_NOISE:
            offer = _shared_noise(world, published, method.widths, seed)
        else:
            offer = propose(drafter_of(world, method, published), method.coins_of(seed, frontier, "a"), VOCAB)
        graph = merge_by_full_prefix([offer], budget=64)
        at_rows = GraphLaws(world, published, graph)
        selection = method.select(graph, at_rows, method.chooser_of(seed, frontier), frontier)
        published = (*published, *(int(graph.token_ids[row]) for row in selection.rows), selection.token)
        rounds += 1
    return published[:horizon], rounds


class PositionKeyed(CoinChooser):
    """The wrong variant: accept coins keyed by the position they decide, so that a later round reads them again."""

    def bernoulli(self, probability: float, purpose: Purpose, source: str, draw: int) -> bool:
        return CoinChooser(self._seed, self._frontier + draw).bernoulli(probability, purpose, source, 0)


class PositionKeyedDraws(DraftCoins):
    """Draft coins keyed by position."""

    def below(self, weights: npt.NDArray[np.int64], draw: int) -> int:
        return DraftCoins(self._seed, self._frontier + draw, self._source).below(weights, 0)
