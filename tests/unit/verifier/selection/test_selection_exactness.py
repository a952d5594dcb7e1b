"""Every exact verifier, enumerated: shipped drawing, merging and selection give the target's law to 1e-12."""

from __future__ import annotations

import numpy as np
import pytest

from contracts.draft_law import DraftLaw
from contracts.topology import SamplingRelation
from tests.helpers.enumeration import Drafter, enumerate_round
from tests.unit.verifier.selection.cases import LAW_KINDS, TOLERANCE, Case, exact_cases, shipped
from tests.unit.verifier.selection.wrong_variants import enumerated
from verifier.selection.traversal import traverse

CASES = list(exact_cases())


@pytest.mark.parametrize("verifier", sorted({case.verifier for case in CASES}))
def test_output_marginal_equals_the_targets_in_every_case(verifier: str) -> None:
    errors = {case.name: case.error() for case in CASES if case.verifier == verifier}
    assert max(errors.values()) <= TOLERANCE, {name: error for name, error in errors.items() if error > TOLERANCE}


def test_cases_cover_every_kind_of_law_for_every_verifier() -> None:
    covered = {(case.verifier, case.kind) for case in CASES}
    assert all((case.verifier, kind) in covered for case in CASES for kind in LAW_KINDS)
    assert any(case.vocab == 1 for case in CASES)
    assert any(case.second and case.budget < 64 for case in CASES)


@pytest.mark.parametrize(("name", "error"), list(enumerated()))
def test_wrong_variant_fails_the_same_enumeration(name: str, error: float) -> None:
    assert error > 1e-4, name


@pytest.mark.parametrize("kind", ["random", "peaked", "zeros"])
@pytest.mark.parametrize("length", [1, 2, 3])
def test_block_expects_at_least_as_many_tokens_as_rejection(kind: str, length: int) -> None:
    for seed in range(4):
        rejection = Case("rejection", kind, 3, (1,) * length, seed).run().expected
        block = Case("block", kind, 3, (1,) * length, seed).run().expected
        assert block >= rejection - 1e-12
    if kind == "random" and length == 3:
        assert block > rejection + 1e-3


def test_block_matches_the_motivating_example_of_its_paper() -> None:
    # Two tokens, p = (1/3, 2/3), q = (2/3, 1/3) without context, blocks of two: 10/9 and 11/9 accepted draft tokens.

    third = round((1 << 32) / 3)
    law = DraftLaw(np.array([0, 1]), np.array([(1 << 32) - third, third]))
    drafter = Drafter("a", (1, 1), lambda prefix: law, SamplingRelation.INDEPENDENT)

    def expected(name: str) -> float:
        target = np.array([1 / 3, 2 / 3])
        return enumerate_round([drafter], shipped(name), lambda prefix: target, vocab_size=2, horizon=3).expected

    assert expected("rejection") - 1 == pytest.approx(10 / 9, abs=1e-8)
    assert expected("block") - 1 == pytest.approx(11 / 9, abs=1e-8)


def test_traversal_of_a_chain_is_block_verification() -> None:
    for seed in range(4):
        chain = Case("block", "random", 3, (1, 1, 1), seed).run().expected
        assert Case("traversal", "random", 3, (1, 1, 1), seed).run().expected == pytest.approx(chain, abs=1e-12)


def test_traversal_expects_at_least_as_many_tokens_as_sequoia_on_the_same_trees() -> None:
    for seed in range(6):
        sequoia = Case("sequoia", "random", 3, (2, 1), seed).run().expected
        assert Case("traversal", "random", 3, (2, 1), seed).run().expected >= sequoia - 1e-12


@pytest.mark.parametrize("case", [Case("specinfer", "random", 2, (2, 2)), Case("specinfer", "zeros", 3, (3, 1), 1)])
def test_traversal_of_independent_draws_is_exact_although_repeats_share_a_subtree(case: Case) -> None:
    merged = Case("specinfer", "random", 2, (1, 1), 2, second=(2, 1))
    for one in (case, merged):
        assert one.error(lambda graph, laws, chooser: traverse(graph, laws, chooser, "t", struck=False)) <= TOLERANCE


def test_spectr_expects_at_least_as_many_tokens_as_specinfer_with_two_draws_here() -> None:
    for seed in range(4):
        specinfer = Case("specinfer", "random", 3, (2,), seed).run().expected
        assert Case("spectr", "random", 3, (2,), seed).run().expected >= specinfer - 1e-12
