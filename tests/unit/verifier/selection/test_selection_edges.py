"""Defined outcomes at the edges: extreme coins, equal laws, no residual, malformed draws, coin numbering, device path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch

from contracts.draft_law import DraftLaw, law_from_probabilities
from contracts.errors import Internal, InvalidArgument
from contracts.graph import EMPTY_GRAPH, CandidateGraph, Draw
from contracts.randomness import Chooser, CoinChooser, Purpose
from contracts.receipt import Closing
from contracts.sampling import SamplingPolicy
from contracts.topology import ProbabilitySemantics, SamplingRelation
from models import law_scores
from models.laws import LawProcessor, TargetLaws
from tests.helpers.enumeration import Prefix, enumerate_round, laws_for, paths_of
from tests.unit.verifier.selection.cases import Q_BASED, Case, laws, shipped
from verifier.selection import VERIFIERS
from verifier.selection.walk import coin_numbers

Floats = npt.NDArray[np.float64]


def graph_of(
    tokens: Sequence[int],
    parents: Sequence[int],
    laws: Sequence[DraftLaw],
    relation: SamplingRelation = SamplingRelation.INDEPENDENT,
    sources: Sequence[str] = (),
) -> CandidateGraph:
    """One draw per row; laws per row; sources default to "a"."""
    names = list(sources) or ["a"] * len(tokens)
    return CandidateGraph(
        np.array(tokens, dtype=np.int64),
        np.array(parents, dtype=np.int64),
        tuple((name,) for name in names),
        tuple(Draw(parent, row, names[row], row) for row, parent in enumerate(parents)),
        tuple(laws),
        frozenset({ProbabilitySemantics.NORMALIZED_CONDITIONAL}),
        frozenset({relation}),
    )


class FixedUniform(Chooser):
    """Every coin is one uniform, 0.0 and 1.0 included, by the comparison of CoinChooser."""

    def __init__(self, u: float) -> None:
        self.u = u
        self.asked: list[tuple[float, str, int]] = []

    def bernoulli(self, probability: float, purpose: Purpose, source: str, draw: int) -> bool:
        self.asked.append((probability, source, draw))
        return self.u < probability

    def categorical(self, probabilities: Floats, purpose: Purpose, source: str, draw: int) -> int:
        return int(np.flatnonzero(probabilities > 0.0)[0])

    def gumbel_argmax(self, log_probs: Floats, position: int) -> int:
        return int(np.argmax(log_probs))


@pytest.mark.parametrize("name", Q_BASED)
def test_a_coin_of_zero_never_accepts_a_token_of_probability_zero(name: str) -> None:
    law = law_from_probabilities([0, 1], [0.5, 0.5])
    graph = graph_of([1], [-1], [law], Q_BASED[name])
    target = TargetLaws.from_probabilities([[0.4, 0.0, 0.6], [1.0, 0.0, 0.0]])
    selection = VERIFIERS[name].select(graph, target, FixedUniform(0.0), prefix_len=3)
    assert selection.rows == ()
    assert selection.token in {0, 2}
    assert selection.closing is Closing.RESIDUAL


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("name", Q_BASED)
def test_laws_equal_to_the_last_bit_accept_everything_under_every_coin_below_one(name: str, device: str | None) -> None:
    law = law_from_probabilities([0, 1, 2], [0.1, 0.2, 0.7])
    p = law.dense(3)
    graph = graph_of([1, 0], [-1, 0], [law, law], Q_BASED[name])
    for u in (0.0, 1.0 - 2.0**-53):
        target = TargetLaws.from_probabilities([p, p, p], device=device)
        selection = VERIFIERS[name].select(graph, target, FixedUniform(u), prefix_len=3)
        assert selection.rows == (0, 1)
        assert selection.closing is Closing.BONUS


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("name", Q_BASED)
def test_a_rejection_without_residual_mass_publishes_from_the_law_before_it(name: str, device: str | None) -> None:
    # A uniform of exactly 1 rejects even a certain acceptance; production coins cannot reach it, rounding could.
    law = law_from_probabilities([0, 1], [0.25, 0.75])
    graph = graph_of([1], [-1], [law], Q_BASED[name])
    target = TargetLaws.from_probabilities([law.dense(2), law.dense(2)], device=device)
    selection = VERIFIERS[name].select(graph, target, FixedUniform(1.0), prefix_len=3)
    assert selection.rows == ()
    assert selection.token in {0, 1}


def test_production_coins_are_never_zero_or_one() -> None:
    chooser = CoinChooser(0, 0)
    assert not any(chooser.bernoulli(0.0, Purpose.ACCEPT, "a", i) for i in range(100))
    assert all(chooser.bernoulli(1.0, Purpose.ACCEPT, "a", i) for i in range(100))


@pytest.mark.parametrize("name", Q_BASED)
def test_a_draw_that_its_law_cannot_make_is_a_typed_error(name: str) -> None:
    graph = graph_of([2], [-1], [law_from_probabilities([0, 1], [0.5, 0.5])], Q_BASED[name])
    target = TargetLaws.from_probabilities(np.full((2, 3), 1 / 3))
    with pytest.raises(InvalidArgument, match=r"graph.draws\[0\]"):
        VERIFIERS[name].select(graph, target, FixedUniform(0.5), prefix_len=3)


@pytest.mark.parametrize("name", ["sequoia", "traversal"])
def test_a_repeat_under_without_replacement_is_a_typed_error(name: str) -> None:
    law = law_from_probabilities([0, 1], [0.5, 0.5])
    graph = graph_of([0, 1], [-1, -1], [law, law], SamplingRelation.WITHOUT_REPLACEMENT)
    repeated = CandidateGraph(
        graph.token_ids,
        graph.parents,
        graph.sources,
        (Draw(-1, 0, "a", 0), Draw(-1, 0, "a", 0), Draw(-1, 1, "a", 0)),
        (law,),
        graph.semantics,
        graph.relations,
    )
    target = TargetLaws.from_probabilities([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    with pytest.raises(InvalidArgument, match=r"graph.draws\[1\]"):
        VERIFIERS[name].select(repeated, target, FixedUniform(0.5), prefix_len=3)


@pytest.mark.parametrize("name", [name for name in VERIFIERS if name != "greedy"])
def test_an_empty_graph_publishes_one_token_of_the_target(name: str) -> None:
    target = TargetLaws.from_probabilities([[0.0, 1.0, 0.0]])
    selection = VERIFIERS[name].select(EMPTY_GRAPH, target, CoinChooser(1, 2), prefix_len=2)
    assert selection.rows == ()
    assert selection.token == 1


def test_membership_and_greedy_descend_by_token_whatever_was_drawn() -> None:
    point = law_from_probabilities([0], [1.0])
    graph = graph_of([1, 0, 2, 1], [-1, -1, 0, 2], [point] * 4)
    p = np.eye(3)[[1, 2, 0, 1, 2]]
    for name in ("greedy", "membership"):
        selection = VERIFIERS[name].select(graph, TargetLaws.from_probabilities(p), CoinChooser(0, 1), prefix_len=1)
        assert selection.rows == (0, 2, 3)
        assert selection.token == 2


def test_accept_coins_are_numbered_within_their_source_and_by_plan_only() -> None:
    law = law_from_probabilities([0, 1, 2], [0.2, 0.3, 0.5])
    graph = graph_of([0, 1, 2, 0], [-1, -1, 0, 1], [law] * 4, sources=["a", "b", "a", "b"])
    assert coin_numbers(graph) == (0, 0, 1, 1)
    chooser = FixedUniform(0.999999)
    target = TargetLaws.from_probabilities([[0.1, 0.1, 0.8], *[[0.0, 0.0, 1.0]] * 4])
    VERIFIERS["specinfer"].select(graph, target, chooser, prefix_len=4)
    assert [(source, draw) for _, source, draw in chooser.asked] == [("a", 0), ("b", 0)]


EVERY = [name for name in VERIFIERS if name != "smc"]
POLICIES = [
    SamplingPolicy(temperature=0.9),
    SamplingPolicy(temperature=0.9, top_p=0.9),
    SamplingPolicy(temperature=0.0),
]


def select_over(name: str, policy: SamplingPolicy, logits: torch.Tensor) -> tuple[tuple[int, ...], int]:
    """(rows, token) of a verifier over processed logits float32 [3, 6]; candidates: 1, then 0 below it."""
    law = law_from_probabilities([0, 1], [0.5, 0.5])
    graph = graph_of([1, 0], [-1, 0], [law, law], Q_BASED.get(name, SamplingRelation.INDEPENDENT))
    processor = LawProcessor(policy, vocab_size=6, prompt_len=1, eos_ids=())
    processed = processor.laws(logits, prefix=np.array([3]), token_ids=graph.token_ids, parents=graph.parents)
    selection = VERIFIERS[name].select(graph, processed, CoinChooser(0, 1), prefix_len=1)
    return selection.rows, selection.token


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("name", EVERY)
def test_nan_in_a_visited_row_is_an_internal_error_that_names_it(name: str, policy: SamplingPolicy) -> None:
    for row in range(2):
        logits = torch.full((3, 6), -9.0)
        logits[0, 1] = logits[1, 0] = 9.0
        logits[row, 4] = torch.nan
        with pytest.raises(Internal, match=f"NaN in the logits of predictor row {row - 1}"):
            select_over(name, policy, logits)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("name", EVERY)
def test_plus_infinity_takes_all_mass_and_minus_infinity_none(name: str, policy: SamplingPolicy) -> None:
    logits = torch.zeros(3, 6)
    logits[:, 4] = torch.inf
    assert select_over(name, policy, logits) == ((), 4)
    logits[0, 4], logits[0, 1] = -torch.inf, torch.inf
    assert select_over(name, policy, logits) == ((0,), 4)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("name", EVERY)
def test_a_row_with_everything_masked_is_a_typed_error(name: str, policy: SamplingPolicy) -> None:
    with pytest.raises(InvalidArgument, match="leave no token at predictor row -1"):
        select_over(name, replace(policy, banned_ids=tuple(range(6))), torch.zeros(3, 6))
    with pytest.raises(Internal, match="all logits of predictor row -1 are -inf"):
        select_over(name, policy, torch.full((3, 6), -torch.inf))


@pytest.fixture(params=["host sweeps", "torch operations"])
def dense_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dense laws over both kinds of scores; the device's on tensors of the host."""
    if request.param == "torch operations":
        monkeypatch.setattr(law_scores, "on_host", lambda scores: False)


@pytest.mark.usefixtures("dense_path")
@pytest.mark.parametrize("verifier", sorted({*Q_BASED, "membership"}))
def test_dense_device_laws_and_the_sparse_reference_give_the_same_enumeration(verifier: str) -> None:
    widths = (1, 1) if verifier in {"rejection", "block"} else (2, 1)
    for kind in ("random", "zeros", "narrow"):
        case = Case(verifier, kind, 3, widths)
        reference = case.run()
        dense = enumerate_round(
            case.drafters(), shipped(verifier), case.target(), vocab_size=3, horizon=case.horizon, device="cpu"
        )
        assert dense.expected == pytest.approx(reference.expected, abs=1e-12)
        for key in reference.marginal.keys() | dense.marginal.keys():
            assert dense.marginal.get(key, 0.0) == pytest.approx(reference.marginal.get(key, 0.0), abs=1e-12)


@pytest.mark.usefixtures("dense_path")
@pytest.mark.parametrize("verifier", sorted({*Q_BASED, "membership", "typical"}))
def test_device_and_reference_select_the_same_with_production_coins(verifier: str) -> None:
    relation = Q_BASED.get(verifier, SamplingRelation.INDEPENDENT)
    for seed in range(60):
        target, draft = laws("random", seed, 40)
        tokens = [int(draft(()).token_ids[0]), int(draft((1,)).token_ids[1])]
        graph = graph_of(tokens, [-1, 0], [draft(()), draft((1,))], relation)
        picks = [
            VERIFIERS[verifier].select(
                graph, laws_for(graph, target, device=device), CoinChooser(seed, 5), prefix_len=5
            )
            for device in (None, "cpu")
        ]
        assert picks[0] == picks[1]


def test_selection_over_processed_logits_equals_selection_over_their_laws() -> None:
    generator = torch.Generator().manual_seed(0)
    law = law_from_probabilities(np.arange(50), np.ones(50))
    graph = graph_of([3, 9, 4], [-1, 0, -1], [law] * 3)
    policy = SamplingPolicy(temperature=0.8, top_p=0.9, presence_penalty=0.7)
    for seed in range(40):
        logits = torch.randn(4, 50, generator=generator) * 2
        processor = LawProcessor(policy, vocab_size=50, prompt_len=1, eos_ids=())
        processed = processor.laws(logits, prefix=np.array([0, 3]), token_ids=graph.token_ids, parents=graph.parents)
        given = TargetLaws.from_probabilities([processed.row(row).dense() for row in range(-1, 3)])
        for name in ("membership", "specinfer", "spectr"):
            one, two = (
                VERIFIERS[name].select(graph, laws, CoinChooser(seed, 2), prefix_len=2) for laws in (processed, given)
            )
            assert one == two


def test_paths_of_rows_run_from_the_anchor() -> None:
    law = law_from_probabilities([0], [1.0])
    expected: list[Prefix] = [(4,), (4, 5), (6,)]
    assert paths_of(graph_of([4, 5, 6], [-1, 0, -1], [law] * 3)) == expected


@pytest.mark.parametrize("policy", [SamplingPolicy(temperature=0.8, top_p=0.95), SamplingPolicy()], ids=str)
@pytest.mark.parametrize("name", [name for name in VERIFIERS if name not in {"greedy", "smc"}])
def test_a_device_sends_short_vectors_only(name: str, policy: SamplingPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(law_scores, "on_host", lambda scores: False)
    sent: list[int] = []
    fetch = torch.Tensor.cpu

    def counted(tensor: torch.Tensor) -> torch.Tensor:
        sent.append(tensor.numel())
        return fetch(tensor)

    monkeypatch.setattr(torch.Tensor, "cpu", counted)
    vocab = 20_000
    logits = -1.5 * torch.log(torch.arange(1, vocab + 1).float()).repeat(4, 1)
    law = law_from_probabilities(np.arange(64), np.ones(64))
    for seed in range(5):
        graph = graph_of([7, 30, 50], [-1, 0, 1], [law] * 3, Q_BASED.get(name, SamplingRelation.INDEPENDENT))
        processor = LawProcessor(policy, vocab_size=vocab, prompt_len=1, eos_ids=())
        processed = processor.laws(logits, prefix=np.array([3]), token_ids=graph.token_ids, parents=graph.parents)
        VERIFIERS[name].select(graph, processed, CoinChooser(seed, 1), prefix_len=1)
    assert sent
    assert max(sent) < vocab / 8
