"""A group of particle sessions on a real (tiny) transformer: exact anchors, weights, resampling, certificate, refusals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from contracts.capability import Exactness
from contracts.draft_law import DraftLaw, law_from_probabilities
from contracts.drawing import DraftCoins, draw_independent
from contracts.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from contracts.receipt import FinishReason
from contracts.sampling import SamplingPolicy
from models.backend import Backend, RowBlock
from models.laws import LawProcessor
from models.load import load_backend
from tests.helpers.tiny_models import tiny_checkpoint
from tests.unit.verifier.rig import Client, Rig
from verifier.engine import Engine
from verifier.particle_drafts import Block, BlockDrafts, ModelDrafts
from verifier.particle_group import GroupPlan, GroupResult, ParticleGroup, particle_seed

Ints = npt.NDArray[np.int64]
VOCAB = 8
PROMPT = (3, 5, 2)
POLICY = SamplingPolicy(temperature=0.9, top_p=0.98, max_tokens=7, seed=5, ignore_eos=True)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Backend:
    path = tiny_checkpoint(tmp_path_factory.mktemp("target"), vocab_size=VOCAB, seed=1)
    return load_backend(path, implementation="cpu-torch", threads=1)


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Backend:
    path = tiny_checkpoint(tmp_path_factory.mktemp("draft"), vocab_size=VOCAB, layers=1, seed=2)
    return load_backend(path, implementation="cpu-torch", threads=1)


@pytest.fixture
def engine(target: Backend) -> Engine:
    return Engine(target, "t" * 64, "tiny", (1,), max_rows=16, kv_tokens=2048)


def drafts_of(backend: Backend, plan: GroupPlan, policy: SamplingPolicy = POLICY) -> ModelDrafts:
    return ModelDrafts(
        backend, policy, particles=plan.particles, capacity=32, prompt_len=len(PROMPT), vocab_size=VOCAB, eos_ids=(1,)
    )


def run(engine: Engine, backend: Backend, plan: GroupPlan, policy: SamplingPolicy = POLICY) -> GroupResult:
    drafts = drafts_of(backend, plan, policy)
    try:
        return ParticleGroup(engine, "g", PROMPT, policy, plan, drafts).run()
    finally:
        drafts.release()


def law_after(backend: Backend, policy: SamplingPolicy, tokens: Sequence[int]) -> npt.NDArray[np.float64]:
    """The processed law after `tokens`, float64 [V], by one pass over all of them."""
    ids = np.array(tokens, dtype=np.int64)
    slot = backend.allocate(len(ids))
    rows = np.arange(len(ids))
    logits = backend.forward([RowBlock(slot, ids, rows, rows - 1, rows[-1:])]).logits[0]
    backend.release(slot)
    processor = LawProcessor(policy, vocab_size=VOCAB, prompt_len=len(PROMPT), eos_ids=(1,))
    none = np.zeros(0, dtype=np.int64)
    return processor.laws(logits, prefix=ids, token_ids=none, parents=none).row(-1).dense()


def test_group_grows_by_k_plus_one_tokens_a_round_and_ends_at_its_limit(engine: Engine, draft: Backend) -> None:
    free = engine.kv_tokens_free
    result = run(engine, draft, GroupPlan(particles=5, drafted=2))
    assert result.rounds == 3
    assert [len(text) for text in result.population] == [7] * 5
    assert result.tokens in result.population
    assert result.finish is FinishReason.LENGTH
    assert engine.kv_tokens_free == free
    assert result.target_us > 0.0
    assert result.select_us > 0.0


def test_same_seed_gives_the_same_result_and_another_seed_another_population(engine: Engine, draft: Backend) -> None:
    plan = GroupPlan(particles=4, drafted=2)
    first, second = run(engine, draft, plan), run(engine, draft, plan)
    assert (first.tokens, first.population, first.certificate) == (second.tokens, second.population, second.certificate)
    assert run(engine, draft, plan, replace(POLICY, seed=6)).population != first.population


def test_weights_are_the_ratios_of_target_and_draft_laws_recomputed_from_the_texts(
    engine: Engine, target: Backend, draft: Backend
) -> None:
    result = run(engine, draft, GroupPlan(particles=4, drafted=2, ess_share=0.0))
    assert result.certificate.resamplings == 0
    for text, log_weight in zip(result.population, result.log_weights, strict=True):
        expected = 0.0
        for place, token in enumerate(text):
            if place % 3 == 2 or place == 6:
                continue  # The target's own token of each round.
            before = (*PROMPT, *text[:place])
            q = law_from_probabilities(np.arange(VOCAB), law_after(draft, POLICY, before)).probability(token)
            p = law_after(target, POLICY, before)[token]
            expected += (math.log(p) if p > 0.0 else -math.inf) - math.log(q)
        assert log_weight == pytest.approx(expected, abs=1e-4)
    z = np.exp(np.array(result.log_weights)).mean()
    assert result.certificate.log_normaliser == pytest.approx(math.log(z), abs=1e-9)


def test_drafting_nothing_is_the_exact_anchor(engine: Engine, draft: Backend) -> None:
    # K = 0, N = 1 is plain membership decoding under the particle's seed, token for token.
    result = run(engine, draft, GroupPlan(particles=1, drafted=0))
    seed = particle_seed(POLICY.seed, 0)
    rig = Rig(backend=engine._backend, kv_tokens=2048)
    opening = rig.opening(PROMPT, replace(POLICY, seed=seed), sources=())
    rig.engine.open_session(opening)
    assert result.tokens == tuple(Client(rig.engine, opening, list(PROMPT)).run())
    assert result.certificate.exactness is Exactness.EXACT
    assert result.certificate.ess == (1.0,) * 7
    assert result.certificate.mse_scale == 0.0
    many = run(engine, draft, GroupPlan(particles=6, drafted=0))
    assert many.log_weights == (0.0,) * 6
    assert many.certificate.exactness is Exactness.EXACT


class Uniform(BlockDrafts):
    """Draws from one law everywhere."""

    def __init__(self, law: DraftLaw) -> None:
        self._law = law

    def blocks(self, prefixes: Sequence[tuple[int, Ints, int]], count: int) -> list[Block]:
        out = []
        for _, prefix, seed in prefixes:
            coins = DraftCoins(seed, len(prefix), "smc")
            out.append(Block(draw_independent(self._law, count, coins, first_draw=0), (self._law,) * count))
        return out


def test_equal_laws_are_the_exact_anchor_to_the_last_bit() -> None:
    # Four equal logits among -inf: p = q = 1/4 exactly, so all weights are 1 and nothing is ever resampled.
    logits = np.array([0.0] * 4 + [-math.inf] * 16, dtype=np.float32)
    rig = Rig(script=lambda tokens: logits)
    quarter = law_from_probabilities(np.arange(4), np.full(4, 0.25))
    plan = GroupPlan(particles=6, drafted=3, ess_share=1.0)
    policy = SamplingPolicy(max_tokens=8, ignore_eos=True)
    result = ParticleGroup(rig.engine, "g", (1, 2), policy, plan, Uniform(quarter)).run()
    assert result.log_weights == (0.0,) * 6
    assert result.certificate.ess == (6.0, 6.0)
    assert result.certificate.log_normaliser == 0.0
    assert result.certificate.resamplings == 0
    assert result.certificate.chi_square == 0.0


def test_a_draft_equal_to_the_target_weighs_one_up_to_the_grid_of_draft_laws(engine: Engine, target: Backend) -> None:
    result = run(engine, target, GroupPlan(particles=6, drafted=3))
    np.testing.assert_allclose(result.log_weights, 0.0, atol=1e-3)
    assert result.certificate.resamplings == 0
    assert min(result.certificate.ess) > 6.0 - 1e-4
    assert result.certificate.exactness is Exactness.APPROXIMATE


# The statistical test of whole groups, fixed beforehand: two particles, one drafted token, GROUPS groups, seeds from 20,000
# on; one chi-square of the first token against its exact law (all pairs of draws enumerated) at 0.001, cells of at least 8
# pooled in order. Power against publishing q (weights ignored) or p: above 0.999, computed below.
GROUPS, LEVEL = 400, 1e-3
WORDS = 20


class Law(BlockDrafts):
    """Draws from one law and counts on one token a block."""

    def __init__(self, law: DraftLaw) -> None:
        self._inner = Uniform(law)

    def blocks(self, prefixes: Sequence[tuple[int, Ints, int]], count: int) -> list[Block]:
        assert count == 1
        return self._inner.blocks(prefixes, count)


def pooled(counts: npt.NDArray[np.float64], expected: npt.NDArray[np.float64]) -> tuple[list[float], list[float]]:
    seen, wanted, group = [0.0], [0.0], 0
    for count, want in zip(counts, expected, strict=True):
        if wanted[group] >= 8.0 and float(expected.sum()) - sum(wanted) >= 8.0:
            seen.append(0.0)
            wanted.append(0.0)
            group += 1
        seen[group] += float(count)
        wanted[group] += float(want)
    return seen, wanted


@pytest.mark.parametrize("ess_share", [0.0, 1.0])
@pytest.mark.parametrize("equal", [True, False])
def test_published_token_has_the_law_of_the_weighted_pair(equal: bool, ess_share: float) -> None:
    rng = np.random.default_rng(7)
    logits = (1.5 * rng.standard_normal(WORDS)).astype(np.float32)
    p = np.exp(logits.astype(np.float64))
    p /= p.sum()
    q_law = law_from_probabilities(np.arange(WORDS), p if equal else rng.dirichlet(np.ones(WORDS)) + 1e-3)
    q = q_law.dense(WORDS)
    exact = np.zeros(WORDS)
    for pair in np.ndindex(WORDS, WORDS):
        w = (p / q)[list(pair)]
        exact += np.prod(q[list(pair)]) * np.bincount(pair, w / w.sum(), minlength=WORDS)
    if equal:
        np.testing.assert_allclose(exact, p, atol=1e-8)
    else:
        for wrong in (p, q):
            moved, right = (np.array(x) for x in pooled(GROUPS * wrong, GROUPS * exact))
            freedom, noncentrality = len(right) - 1, float(((moved - right) ** 2 / right).sum())
            assert stats.ncx2.sf(stats.chi2.isf(LEVEL, freedom), freedom, noncentrality) > 0.999
    rig = Rig(script=lambda tokens: logits)
    plan = GroupPlan(particles=2, drafted=1, ess_share=ess_share)
    drawn = np.zeros(WORDS)
    for group in range(GROUPS):
        policy = SamplingPolicy(max_tokens=2, ignore_eos=True, seed=20_000 + group)
        drawn[ParticleGroup(rig.engine, "g", (1, 2), policy, plan, Law(q_law)).run().tokens[0]] += 1
    seen, wanted = pooled(drawn, GROUPS * exact)
    assert stats.chisquare(seen, wanted).pvalue > LEVEL


def test_resampled_particles_continue_their_ancestors_text_and_part_from_it(engine: Engine, draft: Backend) -> None:
    seen: list[list[tuple[int, ...]]] = []

    class Watching(BlockDrafts):
        def __init__(self, inner: BlockDrafts) -> None:
            self._inner = inner

        def blocks(self, prefixes: Sequence[tuple[int, Ints, int]], count: int) -> list[Block]:
            seen.append([tuple(prefix.tolist()) for _, prefix, _ in prefixes])
            return self._inner.blocks(prefixes, count)

    plan = GroupPlan(particles=6, drafted=2, ess_share=1.0)
    policy = replace(POLICY, max_tokens=12)
    result = ParticleGroup(engine, "g", PROMPT, policy, plan, Watching(drafts_of(draft, plan, policy))).run()
    assert result.certificate.resamplings == result.rounds == 4
    assert any(len(set(texts)) < 6 for texts in seen[1:])
    assert len(set(result.population)) > 1
    assert result.log_weights == (0.0,) * 6


@pytest.fixture
def stopping() -> Rig:
    """A target that ends after token 4 and else goes on to 4 or 5."""

    def script(tokens: tuple[int, ...]) -> npt.NDArray[np.float32]:
        logits = np.full(20, -np.inf, dtype=np.float32)
        logits[[19] if tokens[-1] == 4 else [4, 5]] = 0.0
        return logits

    return Rig(script=script)


def test_an_end_of_sequence_inside_a_block_ends_that_particle_and_weighs_what_was_published(stopping: Rig) -> None:
    law = law_from_probabilities([4, 5, 19], [0.5, 0.25, 0.25])
    plan = GroupPlan(particles=40, drafted=3, ess_share=0.0)
    policy = SamplingPolicy(max_tokens=8, seed=3)
    result = ParticleGroup(stopping.engine, "g", (5, 5), policy, plan, Uniform(law)).run()
    ended = [n for n, text in enumerate(result.population) if text[-1] == 19]
    assert ended
    for n in ended:
        text = result.population[n]
        assert text.count(19) == 1
        expected = 0.0
        for place, token in enumerate(text):
            if place % 4 == 3:
                continue
            previous = text[place - 1] if place else 5
            p = (1.0 if token == 19 else 0.0) if previous == 4 else (0.5 if token in (4, 5) else 0.0)
            expected += (math.log(p) if p else -math.inf) - math.log(law.probability(token))
        assert result.log_weights[n] == pytest.approx(expected, abs=1e-9)
    assert result.log_weights[result.population.index(result.tokens)] > -math.inf


def test_a_population_that_left_the_targets_support_is_a_typed_error(stopping: Rig) -> None:
    impossible = law_from_probabilities([7], [1.0])
    group = ParticleGroup(
        stopping.engine,
        "g",
        (5, 5),
        SamplingPolicy(max_tokens=8),
        GroupPlan(particles=3, drafted=2),
        Uniform(impossible),
    )
    with pytest.raises(FailedPrecondition, match="no particle of round 0 is possible"):
        group.run()
    assert stopping.engine.kv_tokens_free == stopping.scripted.kv_tokens


@pytest.mark.parametrize(
    ("policy", "plan", "exact", "field"),
    [
        (POLICY, {}, True, "exactness"),
        (replace(POLICY, temperature=0.0), {}, False, "sampling.temperature"),
        (replace(POLICY, stop_strings=("x",)), {}, False, "sampling.stop_strings"),
        (replace(POLICY, logprobs=2), {}, False, "sampling.logprobs"),
        (POLICY, {"drafted": 17}, False, "manifest.node_budget"),
        (POLICY, {"drafted": -1}, False, "group.drafted"),
        (POLICY, {"particles": 0}, False, "group.particles"),
        (POLICY, {"ess_share": 1.5}, False, "group.ess_share"),
    ],
)
def test_what_a_group_cannot_honour_is_refused_and_leaves_nothing_open(
    engine: Engine, draft: Backend, policy: SamplingPolicy, plan: dict[str, Any], exact: bool, field: str
) -> None:
    free = engine.kv_tokens_free
    quarter = law_from_probabilities(np.arange(4), np.full(4, 0.25))
    with pytest.raises((FailedPrecondition, InvalidArgument)) as refused:
        ParticleGroup(engine, "g", PROMPT, policy, GroupPlan(**plan), Uniform(quarter), exact_mode=exact)
    assert refused.value.field == field
    assert engine.kv_tokens_free == free


def test_a_group_larger_than_the_kv_budget_is_refused_whole(target: Backend, draft: Backend) -> None:
    small = Engine(target, "t" * 64, "tiny", (1,), max_rows=16, kv_tokens=40)
    free = small.kv_tokens_free
    with pytest.raises(ResourceExhausted):
        ParticleGroup(
            small, "g", PROMPT, POLICY, GroupPlan(particles=8, drafted=2), Uniform(law_from_probabilities([0], [1.0]))
        )
    assert small.kv_tokens_free == free


def test_a_draft_of_another_vocabulary_is_refused(draft: Backend) -> None:
    with pytest.raises(InvalidArgument, match=r"draft.vocab_size: 8, the target's is 9"):
        ModelDrafts(draft, POLICY, particles=1, capacity=8, prompt_len=1, vocab_size=9)
