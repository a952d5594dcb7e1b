from __future__ import annotations

import pytest

from contracts.errors import InvalidArgument
from contracts.topology import Topology
from contracts.tree_shape import TreeShape, chain, shape_from_paths


def test_nodes_are_numbered_breadth_first_whatever_the_order_given() -> None:
    shape = shape_from_paths([(1, 0), (0,), (0, 1), (1,), (0, 0)])
    assert shape.paths == ((0,), (1,), (0, 0), (0, 1), (1, 0))
    assert shape.parents == (-1, -1, 0, 0, 1)
    assert shape.depths == (1, 1, 2, 2, 2)
    assert shape.ranks == (0, 1, 0, 1, 0)
    assert [shape.children(node) for node in range(-1, 5)] == [2, 2, 1, 0, 0, 0]
    assert [shape.first_child(node) for node in range(-1, 2)] == [0, 2, 4]


def test_the_topology_is_the_narrowest() -> None:
    assert chain(3).topology is Topology.SEQUENCE
    assert TreeShape().topology is Topology.SEQUENCE
    assert TreeShape((-1, -1)).topology is Topology.SET
    assert TreeShape((-1, -1, 1)).topology is Topology.TREE


def test_equal_shapes_have_equal_digests_and_others_do_not() -> None:
    assert chain(2).digest == TreeShape((-1, 0)).digest
    assert chain(2).digest != TreeShape((-1, -1)).digest


@pytest.mark.parametrize("parents", [(0,), (-1, 1), (-2,), (-1, 0, -1)])
def test_what_is_no_breadth_first_numbering_is_refused(parents: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgument, match="shape"):
        TreeShape(parents)


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([(0,), (0,)], "given twice"),
        ([()], "empty"),
        ([(0, 0)], "without its parent"),
        ([(1,)], "without its elder sibling"),
        ([(0,), (0, 0), (0, 2)], "without its elder sibling"),
        ([(-1,)], "without its elder sibling"),
    ],
)
def test_paths_with_holes_are_refused(paths: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        shape_from_paths(paths)
