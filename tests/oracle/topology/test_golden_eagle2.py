"""eagle2_dynamic_tree.json: the published expansion and reranking over an oracle of path log-probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np

from contracts.topology import ANCHOR, ancestor_mask
from proposer.topology.counting import without_root
from proposer.topology.eagle2 import DynamicTree
from tests.helpers.goldens import golden_cases


@golden_cases("eagle2_dynamic_tree.json")
def test_the_dynamic_tree_is_the_published_one(case: dict[str, Any]) -> None:
    path_of: dict[int, tuple[int, ...]] = {ANCHOR: ()}
    tree = DynamicTree(case["top_k"])

    def expand(node: int) -> None:
        log_probs = np.array(case["path_logprobs"][" ".join(map(str, path_of[node]))])
        best = np.argsort(-log_probs, kind="stable")[: case["top_k"]]
        for child in tree.add(node, best.tolist(), log_probs[best].tolist()):
            path_of[child] = (*path_of[node], tree.token(child))

    expand(ANCHOR)
    for _ in range(case["depth_param"]):
        for node in tree.frontier():
            expand(node)
    ranked = tree.rerank(without_root(case["total_token_param"]))

    assert [case["root_token"], *ranked.tokens] == case["draft_tokens"]
    assert [0, *ranked.depths] == case["tree_position_ids"]
    mask = ancestor_mask(np.array([ANCHOR, *(parent + 1 for parent in ranked.parents)]))
    assert [np.flatnonzero(row).tolist() for row in mask] == case["tree_mask_ancestors"]
    inner = set(ranked.parents)
    leaves = {node + 1 for node in range(len(ranked.tokens)) if node not in inner}
    published = [[row for row in path if row >= 0] for path in case["retrieve_indices"]]
    assert {path[-1] for path in published} == leaves
    assert all(np.flatnonzero(mask[path[-1]]).tolist() == path for path in published)
