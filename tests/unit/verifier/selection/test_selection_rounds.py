"""Whole generations over a tiny transformer with the real coins, against the exact law (design: design.py)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from contracts.topology import SamplingRelation
from tests.helpers.enumeration import Prefix
from tests.unit.verifier.selection.design import (
    ALPHA,
    CONFIRMATION,
    EFFECTS,
    FLIP_HORIZON,
    POWER,
    SMALLEST_SEEN,
    SUITE,
    Plan,
    effect,
    output_law,
    p_values,
    power,
    power_at,
    samples,
)
from tests.unit.verifier.selection.rounds import (
    HORIZON,
    RELATIONS,
    Method,
    PositionKeyed,
    PositionKeyedDraws,
    World,
    coin_flip_world,
    generate,
    shipped_method,
    skewed_world,
    transformer_world,
)
from tests.unit.verifier.selection.wrong_variants import sampled

INDEPENDENT, WITHOUT = SamplingRelation.INDEPENDENT, SamplingRelation.WITHOUT_REPLACEMENT


@pytest.mark.parametrize("name", RELATIONS)
def test_generations_follow_the_targets_law(name: str) -> None:
    world = transformer_world()
    assert min(p_values(world, drawn(world, shipped_method(name)))) > ALPHA


WRONG = sampled()


def drawn(world: World, method: Method, horizon: int = HORIZON) -> list[Prefix]:
    return samples(world, method, SUITE.count, SUITE.first_seed, horizon)


def flips(world: World, method: Method) -> list[Prefix]:
    return samples(world, method, SUITE.flips, SUITE.first_seed, FLIP_HORIZON)


@pytest.mark.parametrize("name", WRONG)
def test_design_sees_every_sampled_wrong_variant_almost_surely(name: str) -> None:
    world = transformer_world()
    law = output_law(world, WRONG[name], 3)
    assert effect(world, law, SUITE.count)[0] == pytest.approx(EFFECTS[name], abs=1e-3)
    assert power(world, law, SUITE.count) > POWER


@pytest.mark.parametrize("plan", SMALLEST_SEEN, ids=str)
def test_design_sees_an_unnamed_effect_of_the_stated_size_nine_times_in_ten(plan: Plan) -> None:
    world = transformer_world()
    law = output_law(world, shipped_method("block"), 3)
    _, freedom = effect(world, law, plan.count)
    assert 0.9 < power_at(SMALLEST_SEEN[plan], freedom, plan.count) < 0.91


def test_plans_share_no_seed_with_each_other_or_with_the_design_that_was_changed() -> None:
    used = [range(1500), range(4000)]
    for plan in (SUITE, CONFIRMATION):
        ours = range(plan.first_seed, plan.first_seed + max(plan.count, plan.flips))
        assert all(ours.start >= other.stop or ours.stop <= other.start for other in used)
        used.append(ours)


def test_power_of_an_exact_verifier_is_its_level() -> None:
    world = transformer_world()
    law = output_law(world, shipped_method("block"), 3)
    assert max(abs(weight - world.probability(cell)) for cell, weight in law.items()) < 1e-12
    assert power(world, law, SUITE.count) == pytest.approx(ALPHA, rel=1e-6)


def test_design_sees_the_reported_bias_of_position_keyed_coins() -> None:
    # DECISIONS 6: P(token 0) is .700, .678, .654, .677 at positions 1 to 4; taken as if positions were independent, which
    # leaves out what their dependence adds.
    cells = np.array(list(np.ndindex(2, 2, 2, 2)))
    biased = np.prod(np.where(cells == 0, [0.700, 0.678, 0.654, 0.677], [0.300, 0.322, 0.346, 0.323]), axis=1)
    law = {tuple(cell): weight for cell, weight in zip(cells.tolist(), biased.tolist(), strict=True)}
    assert power(coin_flip_world(), law, SUITE.flips) > 0.98


@pytest.mark.parametrize("name", WRONG)
def test_wrong_variant_fails_the_same_test(name: str) -> None:
    world = transformer_world()
    assert min(p_values(world, drawn(world, WRONG[name]))) <= ALPHA


def test_iid_verifier_on_draws_without_replacement_fails_the_same_test() -> None:
    world = skewed_world()
    mismatched = Method(WITHOUT, (2,), shipped_method("specinfer").select)
    assert power(world, output_law(world, mismatched, 3), SUITE.count) > POWER
    assert min(p_values(world, drawn(world, mismatched, 4))) <= ALPHA
    matched = Method(WITHOUT, (2,), shipped_method("sequoia").select)
    assert min(p_values(world, drawn(world, matched, 4))) > ALPHA


def test_position_keyed_coins_bias_block_verification_over_several_rounds() -> None:
    world = coin_flip_world()
    block = shipped_method("block")
    keyed = replace(block, chooser_of=PositionKeyed, coins_of=PositionKeyedDraws)
    assert min(p_values(world, flips(world, keyed))) <= ALPHA
    assert min(p_values(world, flips(world, block))) > ALPHA


def test_text_of_membership_depends_on_the_seed_alone() -> None:
    world = transformer_world()
    plain = Method(INDEPENDENT, (), shipped_method("membership").select)
    for seed in range(60):
        text, rounds = generate(world, plain, seed)
        assert rounds == len(text)
        for name, method in (
            ("membership", replace(shipped_method("membership"), widths=(3, 2))),
            ("membership", replace(shipped_method("membership"), relation=WITHOUT, widths=(1, 1, 1))),
            ("gumbel_coupled", shipped_method("gumbel_coupled")),
        ):
            assert generate(world, method, seed)[0] == text, name


def test_shared_noise_is_accepted_more_often_than_independent_draws_of_the_same_draft() -> None:
    world = transformer_world()
    independent = replace(shipped_method("membership"), widths=(1, 1, 1))
    coupled = shipped_method("gumbel_coupled")
    rounds = [np.mean([generate(world, method, seed)[1] for seed in range(400)]) for method in (coupled, independent)]
    assert rounds[0] < rounds[1]
