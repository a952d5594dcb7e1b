"""The proposer's side of a pair: a draft model draws at the request's own temperature, truncation, penalties and bans.

Every node's q is recomputed from the same model with a prefill of its own, and cut to the source's support.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from contracts.draft_law import law_from_probabilities
from contracts.sampling import SamplingPolicy
from contracts.topology import SamplingRelation
from models.backend import Backend
from models.load import load_backend
from proposer.draft_model import DraftModel, DraftModelSettings
from tests.helpers.tiny_models import tiny_checkpoint
from tests.unit.proposer.drafting import PROMPT, VOCAB, asked, opened, target_laws

BASE = SamplingPolicy(temperature=0.8, max_tokens=64, seed=4)
POLICIES = {
    "temperature": replace(BASE, temperature=0.3),
    "top_k": replace(BASE, top_k=3),
    "top_p": replace(BASE, top_p=0.6),
    "min_p": replace(BASE, min_p=0.2),
    "typical_p": replace(BASE, typical_p=0.4),
    "penalties": replace(BASE, repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.3),
    "logit_bias": replace(BASE, logit_bias={7: 4.0, 3: -4.0}),
    "banned_ids": replace(BASE, banned_ids=tuple(range(0, VOCAB, 2))),
    "allowed_ids": replace(BASE, allowed_ids=(4, 5, 6, 7)),
}


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Backend:
    path = tiny_checkpoint(tmp_path_factory.mktemp("draft"))
    return load_backend(path, implementation="cpu-torch", threads=1)


@pytest.mark.parametrize("relation", [SamplingRelation.INDEPENDENT, SamplingRelation.WITHOUT_REPLACEMENT])
@pytest.mark.parametrize("name", POLICIES)
def test_every_draft_law_is_the_drafts_own_law_under_the_request(
    backend: Backend, name: str, relation: SamplingRelation
) -> None:
    policy, support = POLICIES[name], 16
    source = DraftModel(backend, DraftModelSettings(relation=relation, support=support))
    rounds = opened(source, policy)
    proposal = asked(source, rounds.request("draft_model", PROMPT, node_budget=4, max_depth=4))
    assert len(proposal.nodes) == 4
    expected, plain = (target_laws(backend, p, PROMPT, proposal) for p in (policy, BASE))
    moved = 0.0
    for parent, law in proposal.laws.items():
        ids, probabilities = expected.row(parent).top(support)
        right = law_from_probabilities(ids, probabilities, support=support)
        np.testing.assert_allclose(law.dense(VOCAB), right.dense(VOCAB), atol=1e-5)
        moved = max(
            moved, float(np.abs(law.dense(VOCAB) - plain.draft_law(parent, support=support).dense(VOCAB)).max())
        )
    # The parameter does something here: a law drawn without it would have failed the comparison above.
    assert moved > 1e-2
