"""medusa_sparse_search.json, medusa_buffers.json, hydra_buffers.json: the published code's answers on its own trees."""

from __future__ import annotations

from typing import Any

import numpy as np

from contracts.tree_shape import shape_from_paths
from proposer.topology.medusa_search import sparse_search
from tests.helpers.goldens import golden, golden_cases
from tests.oracle.topology.hydra_buffers import head_steps
from tests.oracle.topology.medusa_buffers import leaf_paths, medusa_buffers, rooted_mask


def ancestors(mask: np.ndarray) -> list[list[int]]:
    return [np.flatnonzero(row).tolist() for row in mask]


def unordered(paths: list[list[int]]) -> set[tuple[int, ...]]:
    return {tuple(row for row in path if row >= 0) for path in paths}


@golden_cases("medusa_sparse_search.json")
def test_the_calibrated_search_finds_the_published_nodes_in_order(case: dict[str, Any]) -> None:
    assert sparse_search(case["A"], case["nodes"]) == tuple(map(tuple, case["expected"]))


@golden_cases("medusa_buffers.json", lambda file: file["trees"])
def test_medusa_buffers_are_the_published_ones(case: dict[str, Any]) -> None:
    expected = case["buffers"]
    buffers = medusa_buffers(shape_from_paths(map(tuple, case["choices"])), golden("medusa_buffers.json")["TOPK"])
    assert ancestors(buffers.mask) == expected["medusa_attn_mask_ancestors"]
    assert buffers.slots.tolist() == expected["tree_indices"]
    assert buffers.depths.tolist() == expected["medusa_position_ids"]
    assert unordered(buffers.paths.tolist()) == unordered(expected["retrieve_indices"])
    assert buffers.paths.shape == np.array(expected["retrieve_indices"]).shape


def test_hydra_heads_expand_the_published_nodes() -> None:
    case = golden("hydra_buffers.json")
    expected = case["buffers"]
    shape = shape_from_paths(map(tuple, case["choices"]))
    steps = head_steps(shape)
    assert [list(step.children) for step in steps] == expected["children_per_head"]
    assert [list(step.grown) for step in steps] == expected["children_to_expand_per_head"]
    assert [step.width for step in steps] == expected["beam_sizes"]
    for step, published in zip(steps, expected["proposal_cross_attn_masks"], strict=True):
        flat = np.array(published)
        np.testing.assert_array_equal(step.mask, flat.reshape(flat.shape[-2:]).astype(bool))


def test_hydra_verification_buffers_are_medusas() -> None:
    case = golden("hydra_buffers.json")
    expected = case["buffers"]
    shape = shape_from_paths(map(tuple, case["choices"]))
    assert ancestors(rooted_mask(shape)) == expected["hydra_attn_mask_ancestors"]
    buffers = medusa_buffers(shape, 10)
    assert buffers.slots.tolist() == expected["tree_indices"]
    assert buffers.depths.tolist() == expected["hydra_position_ids"]
    paths = leaf_paths(shape)
    assert unordered(paths.tolist()) == unordered(expected["retrieve_indices"])
    lengths = {path[-1]: len(path) - 1 for path in unordered(paths.tolist())}
    published = [[row for row in path if row >= 0] for path in expected["retrieve_indices"]]
    assert [lengths[path[-1]] for path in published] == expected["max_accepts"]
