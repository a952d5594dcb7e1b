"""M7.2 sections 0x02C, 0x02E, 0x06 and M7.7 0x09B: parameter and memory figures with the documents' own numbers."""

from __future__ import annotations

import pytest


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
