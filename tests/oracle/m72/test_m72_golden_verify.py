"""medusa_verify.json: accepted nodes of greedy and typical verification over random logits on published trees."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from contracts.graph import CandidateGraph, Draw
from contracts.randomness import CoinChooser
from contracts.sampling import SamplingPolicy
from models.laws import LawProcessor
from tests.helpers.goldens import golden
from tests.oracle.m72.medusa_reference import evaluate, parents_of
from verifier.selection import VERIFIERS

RULES = {"greedy": ("greedy", 0.0), "typical_T0.7_eps0.09_alpha0.3": ("typical", 0.7)}


def graph_of(tokens: list[int], parents: list[int]) -> CandidateGraph:
    return CandidateGraph(
        np.array(tokens, dtype=np.int64),
        np.array(parents, dtype=np.int64),
        (("medusa",),) * len(tokens),
        tuple(Draw(parent, row, "medusa") for row, parent in enumerate(parents)),
    )


def select(name: str, temperature: float, tokens: list[int], parents: list[int], logits: np.ndarray) -> list[int]:
    """Packed rows accepted by the shipped verifier, the root (our anchor) as row 0."""
    policy = SamplingPolicy(temperature=temperature)
    processor = LawProcessor(policy, vocab_size=logits.shape[1], prompt_len=1, eos_ids=())
    graph = graph_of(tokens, parents)
    laws = processor.laws(
        torch.tensor(logits, dtype=torch.float32),
        prefix=np.array([0]),
        token_ids=graph.token_ids,
        parents=graph.parents,
    )
    return [0, *(row + 1 for row in VERIFIERS[name].select(graph, laws, CoinChooser(0, 1), prefix_len=1).rows)]


@pytest.mark.parametrize("rule", RULES)
def test_accepted_nodes_equal_the_published_ones_unless_those_count_padding(rule: str) -> None:
    data = golden("medusa_verify.json")
    name, temperature = RULES[rule]
    for case in data["cases"]:
        parents, _ = parents_of(data["choices"][case["tree"]])
        published, logits = case["results"][rule], np.array(case["node_logits"])
        ours = select(name, temperature, case["node_tokens"][1:], parents, logits)
        if published["official_accepted_padding"]:
            honest = evaluate(RULES[rule][0], case["retrieve_rows"], case["node_tokens"], logits, padding_matches=False)
            assert ours == honest != published["accepted_node_path"]
            continue
        assert ours == published["accepted_node_path"]
        assert len(ours) - 1 == published["accept_length"]


@pytest.mark.parametrize("rule", RULES)
def test_the_loop_reference_agrees_with_the_golden_file(rule: str) -> None:
    for case in golden("medusa_verify.json")["cases"]:
        found = evaluate(
            RULES[rule][0],
            case["retrieve_rows"],
            case["node_tokens"],
            np.array(case["node_logits"]),
            padding_matches=True,
        )
        assert found == case["results"][rule]["accepted_node_path"]


@pytest.mark.parametrize("rule", RULES)
def test_published_code_counts_padding_as_a_match_and_we_do_not(rule: str) -> None:
    # Root with children 3 (a leaf) and 2, the latter with child 4. The leaf's row expects token 0, which is what padding
    # is gathered as: the published rule accepts one edge too many along the leaf's padded path.
    tokens, parents, rows = [7, 3, 2, 4], [-1, -1, 1], [[0, 1, -1], [0, 2, 3]]
    logits = np.full((4, 8), -9.0)
    logits[0, 3] = logits[1, 0] = logits[2, 5] = logits[3, 5] = 9.0
    kind, temperature = RULES[rule]
    official = evaluate(kind, rows, tokens, logits, padding_matches=True)
    assert official == [0, 1, -1]
    ours = select(kind, temperature, tokens[1:], parents, logits)
    assert ours == evaluate(kind, rows, tokens, logits, padding_matches=False) == [0, 1]
