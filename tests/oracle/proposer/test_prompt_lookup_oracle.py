"""The shipped matcher against naive scans, and against the continuations that published matchers returned."""

from __future__ import annotations

import random
from typing import Any

import pytest

from proposer.prompt_lookup import PromptLookup, PromptLookupSettings
from tests.helpers.goldens import golden
from tests.oracle.proposer.naive_lookup import (
    earliest_clipped,
    earliest_full_length,
    latest_full_length,
    m77_lookup,
    one_edit,
)
from tests.unit.proposer.rounds import Rounds, session_manifest

ORACLES = {
    ("latest", "clipped"): m77_lookup,
    ("latest", "full_length"): latest_full_length,
    ("earliest", "clipped"): earliest_clipped,
    ("earliest", "full_length"): earliest_full_length,
    ("one_edit", "clipped"): one_edit,
}


def lookup(settings: PromptLookupSettings, ids: list[int], wanted: int) -> list[int]:
    source = PromptLookup(settings)
    rounds = Rounds(session_manifest([source.describe()]))
    proposal = source.propose(rounds.request("prompt_lookup", ids, node_budget=wanted, max_depth=wanted))
    return [node.token for node in proposal.nodes]


@pytest.mark.parametrize(("rule", "continuation"), ORACLES)
def test_every_rule_equals_its_naive_scan(rule: Any, continuation: Any) -> None:
    rng = random.Random(7)
    oracle = ORACLES[rule, continuation]
    for _ in range(800):
        alphabet = rng.choice((1, 2, 3, 9))
        ids = [rng.randrange(alphabet) for _ in range(rng.randint(1, 60))]
        low, wanted = rng.randint(1, 3), rng.randint(1, 12)
        settings = PromptLookupSettings(rule, continuation, min_ngram=low, max_ngram=rng.randint(low, 6))
        expected = oracle(ids, max_ngram=settings.max_ngram, wanted=wanted, min_ngram=low)
        assert lookup(settings, ids, wanted) == expected, (settings, ids, wanted)


@pytest.mark.parametrize(("matcher", "continuation"), [("official", "full_length"), ("hf_transformers", "clipped")])
def test_the_earliest_rules_return_what_published_matchers_returned(matcher: str, continuation: Any) -> None:
    for case in golden("prompt_lookup.json")["cases"]:
        settings = PromptLookupSettings("earliest", continuation, max_ngram=case["max_ngram"])
        assert lookup(settings, case["ids"], case["num_pred"]) == case[matcher], case
