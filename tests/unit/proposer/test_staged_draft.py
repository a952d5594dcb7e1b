"""Staged drafting: the plain draft model's offer in fewer passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts.draft_law import TOTAL
from contracts.errors import InvalidArgument
from contracts.proposal import Proposal
from contracts.sampling import SamplingPolicy
from contracts.topology import SamplingRelation
from models.backend import Backend
from models.load import load_backend
from proposer.draft_model import DraftModel, DraftModelSettings
from proposer.prompt_lookup import PromptLookupSettings, continuation_of
from proposer.staged_draft import StagedDraft
from proposer.topology.plan import CompleteTree, FixedTree, GrownByValue
from tests.unit.proposer.drafting import GREEDY, PROMPT, SAMPLED, asked, opened, tokens_of

PENALISED = replace(GREEDY, repetition_penalty=1.3, logit_bias={5: 2.0})
DRAWN = [
    SamplingRelation.INDEPENDENT,
    SamplingRelation.WITHOUT_REPLACEMENT,
    SamplingRelation.SHARED_NOISE,
    SamplingRelation.BEAM,
]


class Counting:
    """A backend that counts its passes and their rows."""

    def __init__(self, backend: Backend) -> None:
        self._backend, self.passes, self.rows = backend, 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def forward(self, blocks: Sequence[Any], **options: Any) -> Any:
        self.passes += 1
        self.rows += sum(len(block.token_ids) for block in blocks)
        return self._backend.forward(blocks, **options)


@pytest.fixture
def backend(checkpoint: Path) -> Backend:
    return load_backend(checkpoint, kv_budget_tokens=8192, implementation="cpu-torch")


def same(staged: Proposal, plain: Proposal) -> None:
    """Tokens exactly; laws up to the rounding of passes with other rows in them."""
    assert tokens_of(staged) == tokens_of(plain)
    assert [node.parent for node in staged.nodes] == [node.parent for node in plain.nodes]
    assert staged.laws.keys() == plain.laws.keys()
    for parent, law in plain.laws.items():
        theirs = dict(zip(staged.laws[parent].token_ids.tolist(), staged.laws[parent].weights.tolist(), strict=True))
        for token, weight in zip(law.token_ids.tolist(), law.weights.tolist(), strict=True):
            assert abs(theirs.get(token, 0) - weight) < 1e-4 * TOTAL
    for mine, other in zip(staged.nodes, plain.nodes, strict=True):
        assert mine.score == pytest.approx(other.score, abs=1e-3) if other.score is not None else mine.score is None


def rounds(source: DraftModel, policy: SamplingPolicy, texts: Sequence[Sequence[int]], **limits: int) -> list[Proposal]:
    session = opened(source, policy)
    name = source.describe().name
    return [asked(source, session.request(name, text, round_id=index, **limits)) for index, text in enumerate(texts)]


def texts_of(draft: list[int]) -> list[list[int]]:
    """What a target may have published round by round: a start that repeats, all of a draft, part of one, another."""
    start = PROMPT * 3
    return [start, start + draft[:3], start + draft[:3] + [7, 8], start + draft[:1], PROMPT * 2 + [9] + PROMPT]


@pytest.mark.parametrize("relation", DRAWN)
@pytest.mark.parametrize("policy", [GREEDY, SAMPLED, PENALISED], ids=["greedy", "sampled", "penalised"])
def test_the_offer_is_the_plain_draft_models(
    backend: Backend, relation: SamplingRelation, policy: SamplingPolicy
) -> None:
    settings = DraftModelSettings(relation)
    first = tokens_of(rounds(DraftModel(backend, settings), policy, [PROMPT * 3])[0])
    for limits in ({}, {"node_budget": 1}, {"node_budget": 24, "max_depth": 20}):
        plain = rounds(DraftModel(backend, settings), policy, texts_of(first), **limits)
        staged = rounds(StagedDraft(backend, settings), policy, texts_of(first), **limits)
        for mine, other in zip(staged, plain, strict=True):
            same(mine, other)
    assert all(len(proposal.nodes) == 20 for proposal in staged)


@pytest.mark.parametrize("branch", ["right", "wrong"])
def test_guesses_save_passes_when_right_and_cost_rows_alone_when_wrong(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, branch: str
) -> None:
    plain_backend, staged_backend = Counting(backend), Counting(backend)
    start = np.array(PROMPT * 3)
    plain = rounds(DraftModel(plain_backend), GREEDY, [start.tolist()], node_budget=16, max_depth=16)[0]  # type: ignore[arg-type]
    chain = tokens_of(plain)

    def guess(text: np.ndarray, settings: PromptLookupSettings, wanted: int) -> list[int]:
        done = len(text) - len(start)
        following = chain[done : done + max(0, wanted)]
        return following if branch == "right" else [(token + 1) % 97 for token in following]

    monkeypatch.setattr("proposer.staged_draft.continuation_of", guess)
    staged = rounds(StagedDraft(staged_backend), GREEDY, [start.tolist()], node_budget=16, max_depth=16)[0]  # type: ignore[arg-type]
    same(staged, plain)
    assert plain_backend.passes == 16
    if branch == "right":
        # The prefix, then one pass over all that was guessed.
        assert staged_backend.passes == 2
        assert staged_backend.rows == plain_backend.rows
    else:
        assert staged_backend.passes == 16
        # Guesses that miss are bounded by the room for them.
        assert staged_backend.rows <= plain_backend.rows + 2 * DraftModelSettings().max_nodes


def test_on_text_that_repeats_lookup_saves_draft_passes_per_proposed_token(backend: Backend) -> None:
    counted = {"plain": Counting(backend), "staged": Counting(backend)}
    made: dict[str, int] = {}
    for name, kind in (("plain", DraftModel), ("staged", StagedDraft)):
        source = kind(counted[name], DraftModelSettings(SamplingRelation.BEAM))  # type: ignore[arg-type]
        text, session, proposed = PROMPT * 3, opened(source), 0
        for index in range(8):
            proposal = asked(source, session.request("draft_model", text, round_id=index, node_budget=8))
            proposed += len(proposal.nodes)
            # The target agrees with all of it and adds what the draft would have said.
            text = text + tokens_of(proposal)
        made[name] = proposed
    assert made["staged"] == made["plain"]
    per_token = {name: counted[name].passes / made[name] for name in made}
    assert per_token["plain"] == 1.0
    # A random model repeats itself a little; a trained one on text to be edited or summarised does so far more.
    assert per_token["staged"] < 0.8


def test_only_chains_are_staged_and_the_version_says_so(backend: Backend) -> None:
    for tree in (CompleteTree((2, 1)), GrownByValue(2, 2)):
        with pytest.raises(InvalidArgument, match="chains"):
            StagedDraft(backend, DraftModelSettings(SamplingRelation.BEAM, tree))
    assert StagedDraft(backend).describe().version != DraftModel(backend).describe().version
    fixed = FixedTree(CompleteTree((1,)).shape(3, 3))
    assert len(rounds(StagedDraft(backend, DraftModelSettings(tree=fixed)), SAMPLED, [PROMPT])[0].nodes) == 3


def test_what_followed_the_best_occurrence_is_copied_in_proportion_to_the_match() -> None:
    settings = PromptLookupSettings(rule="latest", max_ngram=8, spec_factor=2)
    text = np.array([1, 2, 3, 4, 5, 6, 7, 9, 2, 3])
    assert continuation_of(text, settings, 16) == [4, 5, 6, 7]
    assert continuation_of(text, settings, 1) == [4]
    assert continuation_of(text, settings, 0) == continuation_of(text, settings, -2) == []
    assert continuation_of(np.array([1, 2]), settings, 4) == []
