"""M7.2 sections 0x02C, 0x02E, 0x06, 0x07B-0x07E: parameter, memory and cost figures with the documents' own numbers.

0x07E names the nine-row tree at P = 2048 with K = 4, d = 4096, V = 32000, and what a cost account must not leave out. Where
the account is ours (mask, laws, ledger), the shipped code is what is counted.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from contracts.ledger import RoundLedger, sum_ledgers
from contracts.topology import ancestor_mask, path_to
from models.law_rows import Law, law_from_vector
from models.laws import TargetLaws
from tests.oracle.m72.medusa_reference import parents_of

P, N, K, D, V = 2048, 9, 4, 4096, 32_000
PARENTS, _ = parents_of([(0,), (1,), (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)])
WITH_ROOT = np.array([-1, *(parent + 1 for parent in PARENTS)])
PATHS = [[0, *(row + 1 for row in path_to(np.array(PARENTS), leaf))] for leaf in sorted(set(range(8)) - set(PARENTS))]
NODE_BYTES = 32 * 2 * 8 * 128 * 2
PUBLISHED = 3


def residual_block(d: int) -> int:
    return d * d + d


def head_parameters(*, d: int, vocab: int, heads: int, blocks: int, shared_projection: bool) -> int:
    per_head = blocks * residual_block(d) + (0 if shared_projection else vocab * d)
    return heads * per_head


def kv_bytes(nodes: int, *, layers: int, kv_heads: int, head_dim: int, scalar_bytes: int) -> int:
    """Dense payload of the tree's rows: keys and values of all layers."""
    return nodes * layers * 2 * kv_heads * head_dim * scalar_bytes


def cartesian_nodes(branching: list[int]) -> int:
    total, level = 0, 1
    for b in branching:
        level *= b
        total += level
    return total


def test_independent_heads_have_591_413_248_parameters() -> None:
    assert residual_block(4096) == 16_781_312
    assert 32_000 * 4096 == 131_072_000
    independent = head_parameters(d=4096, vocab=32_000, heads=4, blocks=1, shared_projection=False)
    assert independent == 591_413_248
    assert independent * 2 / 2**30 == pytest.approx(1.102, abs=5e-4)


def test_shared_projection_leaves_67_125_248_parameters_and_all_projection_work() -> None:
    shared = head_parameters(d=4096, vocab=32_000, heads=4, blocks=1, shared_projection=True)
    assert shared == 67_125_248
    assert shared * 2 / 2**20 == pytest.approx(128.03, abs=5e-3)
    assert 4 * 32_000 * 4096 == 524_288_000


def test_a_node_takes_128_kib_and_21_nodes_2_625_mib() -> None:
    one = kv_bytes(1, layers=32, kv_heads=8, head_dim=128, scalar_bytes=2)
    assert one == 131_072 == 128 * 1024
    assert cartesian_nodes([3, 2, 2]) == 21
    assert kv_bytes(21, layers=32, kv_heads=8, head_dim=128, scalar_bytes=2) / 2**20 == 2.625


def test_dense_attention_does_more_pairs_than_the_mask_allows() -> None:
    # A mask is no proof of a sparse kernel: the pairs it forbids are computed all the same.
    allowed = N * P + int(ancestor_mask(WITH_ROOT).sum())
    dense = N * (P + N)
    assert (allowed, dense) == (18_455, 18_513)
    assert dense - allowed == N * N - 23 == 58


def head_projection_flops(rows: int) -> int:
    return 2 * K * rows * D * V


def test_head_projections_are_four_times_the_models_own_and_weight_sharing_saves_none() -> None:
    lm_projection = 2 * N * D * V
    assert lm_projection == 2_359_296_000
    assert head_projection_flops(N) == 9_437_184_000 == K * lm_projection
    assert head_projection_flops(1) == 1_048_576_000 == head_projection_flops(N) // 9
    # The head of a shared projection has no V x D weights of its own and multiplies by the model's all the same.
    own = head_parameters(d=D, vocab=V, heads=K, blocks=1, shared_projection=False)
    shared = head_parameters(d=D, vocab=V, heads=K, blocks=1, shared_projection=True)
    assert own - shared == K * V * D
    assert 2 * N * (own - shared) == head_projection_flops(N)
    assert 2 * N * shared > 2 * K * N * D * D == 1_207_959_552


def test_gathered_paths_hold_twice_the_logits_of_the_rows_and_our_laws_visit_rows_once() -> None:
    assert N * V == 288_000
    assert K * N * V == 1_152_000
    gathered = [row for path in PATHS for row in path]
    assert len(gathered) * V == 6 * 3 * V == 576_000
    made: list[int] = []

    def law_of(row: int) -> Law:
        made.append(row)
        return law_from_vector(np.array([0.5, 0.5]))

    laws = TargetLaws(2, law_of, lambda row: 0)
    for row in gathered:
        laws.row(row - 1)
    assert sorted(made) == list(range(-1, 8))


def test_temporary_and_committed_kv_are_both_counted() -> None:
    assert kv_bytes(1, layers=32, kv_heads=8, head_dim=128, scalar_bytes=2) == NODE_BYTES
    assert (N * NODE_BYTES, PUBLISHED * NODE_BYTES) == (1_179_648, 393_216)
    assert N * NODE_BYTES + PUBLISHED * NODE_BYTES == 1.5 * 2**20


# A synthetic profile, in units of one target step: it demonstrates the equation and measures nothing.
PROFILE = RoundLedger(proposal=0.2, verify=1.1, selection=0.1, state=0.1, committed=PUBLISHED, accepted=2)


def test_speed_up_is_published_tokens_over_overhead_and_breaks_even_there() -> None:
    total = sum_ledgers([PROFILE], plain_step_us=1.0)
    assert total.total_us == pytest.approx(1.5)
    assert total.speedup == pytest.approx(PUBLISHED / 1.5)
    even = sum_ledgers([PROFILE, replace(PROFILE, committed=0)], plain_step_us=1.0)
    assert even.speedup == pytest.approx(1.0)
    assert even.tokens_per_pass == pytest.approx(even.total_us / even.rounds)


def test_rounds_in_the_numerator_give_another_speed_up() -> None:
    total = sum_ledgers([PROFILE] * 4, plain_step_us=1.0)
    assert total.committed == 12
    assert total.speedup == pytest.approx(total.committed / total.total_us)
    assert total.speedup != pytest.approx(total.rounds / total.total_us)


@pytest.mark.parametrize(
    "without",
    [replace(PROFILE, proposal=0.0), replace(PROFILE, selection=0.0), replace(PROFILE, state=0.0)],
    ids=["heads", "posterior", "commit"],
)
def test_a_ledger_that_leaves_a_part_out_flatters(without: RoundLedger) -> None:
    whole = sum_ledgers([PROFILE], plain_step_us=1.0)
    assert sum_ledgers([without], plain_step_us=1.0).speedup > whole.speedup


def test_a_profile_without_a_measured_step_claims_no_speed_up() -> None:
    assert sum_ledgers([PROFILE]).speedup == 0.0
