"""Trees by name: each way of writing one, and what is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from contracts.errors import DataLoss, DraftproofError, FailedPrecondition, InvalidArgument, NotFound
from contracts.proposal import MAX_NODES
from contracts.topology import Topology
from contracts.tree_shape import TreeShape
from proposer.topology.plan import CalibratedTree, CompleteTree, FixedTree, GrownByValue, SparseTree
from services.proposer_service.process import build_proposer
from services.settings import ProposerSettings
from services.trees import tree_of
from tests.contract.tiny_service import tiny_service_checkpoint
from tests.unit.proposer.topology.calibrations import calibration


def test_widths_and_growth_by_value_are_written_in_numbers() -> None:
    assert tree_of("1") == CompleteTree((1,))
    assert tree_of("4,2,1") == CompleteTree((4, 2, 1))
    assert tree_of("by_value:4x6") == GrownByValue(4, 6)
    assert tree_of("comb:2x3") == FixedTree(TreeShape((-1, -1, 0, 0, 2, 2)))


def test_a_calibration_is_named_by_its_file_and_forced_in_the_open(tmp_path: Path) -> None:
    path = tmp_path / "here.json"
    path.write_bytes(calibration().to_bytes())
    plan, forced = tree_of(str(path)), tree_of(f"forced:{path}", nodes=3)
    assert isinstance(plan, CalibratedTree)
    assert isinstance(forced, CalibratedTree)
    assert plan.label == f"calibration:{calibration().hash}"
    assert forced.label == f"forced-calibration:{calibration().hash}"
    assert (plan.nodes, forced.nodes) == (7, 3)
    sparse, both = tree_of(f"medusa:{path}", nodes=5), tree_of(f"medusa:forced:{path}")
    assert isinstance(sparse, SparseTree)
    assert isinstance(both, SparseTree)
    assert (sparse.label, both.label) == (plan.label, forced.label)
    assert (sparse.nodes, both.nodes) == (5, MAX_NODES)


def test_a_calibration_of_other_drafting_is_refused_and_may_be_forced(tmp_path: Path) -> None:
    path = tmp_path / "here.json"
    path.write_bytes(calibration().to_bytes())
    tree_of(str(path), drafting=calibration().drafting)
    for named in (str(path), f"medusa:{path}"):
        with pytest.raises(FailedPrecondition, match=r"calibration\.drafting"):
            tree_of(named, drafting="float32, elsewhere")
    tree_of(f"forced:{path}", drafting="float32, elsewhere")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", NotFound),
        ("nowhere.json", NotFound),
        ("forced:", NotFound),
        ("by_value:4", NotFound),
        ("medusa:", NotFound),
        ("medusa:nowhere.json", NotFound),
        ("medusa:2,1", NotFound),
        ("comb:0x3", InvalidArgument),
        ("comb:64x16", InvalidArgument),
        ("0", InvalidArgument),
        ("by_value:0x3", InvalidArgument),
    ],
)
def test_anything_else_is_refused(text: str, error: type[DraftproofError]) -> None:
    with pytest.raises(error):
        tree_of(text)


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "here.json"
    path.write_bytes(calibration().to_bytes().replace(b"beam", b"bean"))
    with pytest.raises(DataLoss):
        tree_of(str(path))


def test_the_proposer_serves_its_draft_model_with_the_tree_of_its_settings(tmp_path: Path) -> None:
    checkpoint = str(tiny_service_checkpoint(tmp_path))
    path = tmp_path / "here.json"
    path.write_bytes(calibration().to_bytes())
    common = {"model": checkpoint, "draft_model": checkpoint, "draft_dtype": "float32", "draft_threads": 1}
    declared = {}
    for tree, relation in (("1", "independent"), ("2,1", "without_replacement"), (f"forced:{path}", "beam")):
        proposer = build_proposer(ProposerSettings(**common, draft_tree=tree, draft_relation=relation))
        declared[relation] = {source.name: source for source in asyncio.run(proposer.describe())}["draft_model"]
        proposer.shutdown()
    assert [source.topology for source in declared.values()] == [Topology.SEQUENCE, Topology.TREE, Topology.TREE]
    assert [str(source.relation) for source in declared.values()] == list(declared)
    assert declared["beam"].version.endswith(f"+forced-calibration:{calibration().hash}")
