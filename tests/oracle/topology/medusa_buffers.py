"""Medusa's tree buffers, derived from a shape and the one ancestor mask that every verification pass uses.

Independent heads offer one list of `top_k` tokens per depth, so a node's token follows from its depth and rank alone: one
gather over the flat list [root, head 1's top_k, head 2's top_k, ...]. Rows here count the root, our anchor, as row 0.
(Cai et al., ICML 2024, section 2.1.2; the names in brackets are the published code's.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from contracts.errors import InvalidArgument
from contracts.topology import ANCHOR, ancestor_mask, path_to
from contracts.tree_shape import TreeShape

Int64Array = npt.NDArray[np.int64]
PADDING = -1


@dataclass(frozen=True)
class MedusaBuffers:
    """mask: bool [N + 1, N + 1], ancestors and self ("medusa_attn_mask"). slots: int64 [N + 1], where each row's token
    stands in the flat candidate list ("tree_indices"). depths: int64 [N + 1] ("medusa_position_ids"). paths: int64
    [leaves, max_depth + 1], rows from the root to each leaf, padded with -1 ("retrieve_indices").
    """

    mask: npt.NDArray[np.bool_]
    slots: Int64Array
    depths: Int64Array
    paths: Int64Array


def candidate_slots(shape: TreeShape, top_k: int) -> Int64Array:
    """int64 [N]: (depth - 1) * top_k + rank, each node's place in the heads' flat token list (without the root).

    `head_tokens.reshape(-1)[candidate_slots(shape, top_k)]` are the tokens of all nodes. Raises InvalidArgument for a rank
    beyond `top_k`.
    """
    depths, ranks = np.array(shape.depths, dtype=np.int64), np.array(shape.ranks, dtype=np.int64)
    if len(ranks) and int(ranks.max()) >= top_k:
        raise InvalidArgument("top_k", f"{top_k} candidates a head, but the shape has rank {int(ranks.max())}")
    return (depths - 1) * top_k + ranks


def leaf_paths(shape: TreeShape) -> Int64Array:
    """int64 [leaves, max_depth + 1]: rows from the root (0) to each leaf, node i being row i + 1, padded with -1."""
    parents = np.array(shape.parents, dtype=np.int64)
    leaves = [node for node in range(ANCHOR, len(shape)) if not shape.children(node)]
    out = np.full((len(leaves), shape.max_depth + 1), PADDING, dtype=np.int64)
    out[:, 0] = 0
    for index, leaf in enumerate(leaves):
        path = path_to(parents, leaf)
        out[index, 1 : len(path) + 1] = np.array(path, dtype=np.int64) + 1
    return out


def rooted_mask(shape: TreeShape) -> npt.NDArray[np.bool_]:
    """bool [N + 1, N + 1]: contracts.topology.ancestor_mask with the root made an explicit first row."""
    with_root = np.concatenate([[ANCHOR], np.array(shape.parents, dtype=np.int64) + 1])
    return ancestor_mask(with_root)


def medusa_buffers(shape: TreeShape, top_k: int) -> MedusaBuffers:
    """All four. `top_k`: candidates a head."""
    return MedusaBuffers(
        mask=rooted_mask(shape),
        slots=np.concatenate([[0], candidate_slots(shape, top_k) + 1]),
        depths=np.array([0, *shape.depths], dtype=np.int64),
        paths=leaf_paths(shape),
    )
