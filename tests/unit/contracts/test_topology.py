"""Row coordinates, masks, shapes, and the unfolding of metadata graphs."""

import numpy as np
import pytest

from contracts.errors import InvalidArgument
from contracts.topology import (
    MetadataNode,
    Topology,
    ancestor_mask,
    check_parents,
    depths_of,
    materialise,
    path_to,
    shape_of,
)
from tests.helpers.proposals import position_ids


def rows(*parents: int) -> np.ndarray:
    return np.array(parents, dtype=np.int64)


def test_siblings_share_a_position_and_depth_counts_from_one() -> None:
    tree = rows(-1, 0, 1, 1)
    assert depths_of(tree).tolist() == [1, 2, 3, 3]
    assert position_ids(tree, 7).tolist() == [7, 8, 9, 9]


def test_a_row_sees_itself_and_its_ancestors_and_no_sibling() -> None:
    mask = ancestor_mask(rows(-1, 0, 1, 1, -1, 4))
    assert [np.flatnonzero(row).tolist() for row in mask] == [[0], [0, 1], [0, 1, 2], [0, 1, 3], [4], [4, 5]]


def test_path_to_the_anchor_is_empty() -> None:
    assert path_to(rows(-1, 0, 1), -1) == ()
    assert path_to(rows(-1, 0, 1), 2) == (0, 1, 2)


@pytest.mark.parametrize("parents", [[0], [-1, 1], [-1, 2, 1], [-2]])
def test_cycles_and_forward_parents_are_refused_naming_the_row(parents: list[int]) -> None:
    with pytest.raises(InvalidArgument, match=r"nodes\[\d\].parent"):
        check_parents(parents)


@pytest.mark.parametrize(
    ("draws", "parents", "shape"),
    [
        ([-1, 0, 1], rows(-1, 0, 1), Topology.SEQUENCE),
        ([], rows(), Topology.SEQUENCE),
        ([-1, -1], rows(-1, -1), Topology.SET),
        ([-1, -1], rows(-1), Topology.SET),
        ([-1, 0, 0], rows(-1, 0, 0), Topology.TREE),
        ([-1, 0, 0], rows(-1, 0), Topology.TREE),
    ],
)
def test_the_narrowest_topology_counts_duplicate_draws(draws: list[int], parents: np.ndarray, shape: Topology) -> None:
    assert shape_of(draws, parents) is shape


def test_a_metadata_graph_unfolds_into_one_row_per_path() -> None:
    # A and X both lead to one shared B node: two rows, because their target states differ.
    tokens, parents, owners = materialise(
        [MetadataNode(1, (-1,)), MetadataNode(9, (-1,)), MetadataNode(2, (0, 1))], limit=10
    )
    assert tokens == [1, 9, 2, 2]
    assert parents == [-1, -1, 0, 1]
    assert owners == [0, 1, 2, 2]


def test_an_exponential_metadata_graph_is_refused_at_its_limit() -> None:
    nodes = [MetadataNode(0, (-1,)), MetadataNode(1, (-1,))]
    for layer in range(10):
        nodes += [MetadataNode(2 * layer + k, (2 * layer, 2 * layer + 1)) for k in (2, 3)]
    with pytest.raises(InvalidArgument, match="more than 64 rows"):
        materialise(nodes, limit=64)


@pytest.mark.parametrize("parents", [(1,), (), (-1, -1), (-2,)])
def test_a_metadata_graph_with_a_bad_parent_list_is_refused(parents: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgument, match=r"nodes\[1\].parents"):
        materialise([MetadataNode(0, (-1,)), MetadataNode(1, parents)], limit=10)
