"""Records that are frozen to type checkers alone compare, hash and are replaced as frozen dataclasses are."""

from dataclasses import FrozenInstanceError, dataclass, field, replace

import pytest

from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology


@dataclass(frozen=True)
class Plain:
    name: str
    numbers: tuple[int, ...] = ()
    more: tuple[str, ...] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class Slotted:
    name: str
    count: int = 3


@dataclass(frozen=True, eq=False)
class Itself:
    name: str


@dataclass(frozen=True)
class Frozen:
    name: str
    numbers: tuple[int, ...] = ()
    more: tuple[str, ...] = field(default_factory=tuple)


@pytest.mark.parametrize("kind", [Plain, Slotted])
def test_equal_records_are_one_key(kind: type[Plain] | type[Slotted]) -> None:
    assert kind("a") == kind("a")
    assert kind("a") != kind("b")
    assert {kind("a"): 1}[kind("a")] == 1
    assert replace(kind("a"), name="b") == kind("b")


def test_a_record_hashes_as_the_frozen_dataclass_of_its_fields() -> None:
    assert hash(Plain("a", (1,))) == hash(Frozen("a", (1,)))
    with pytest.raises(FrozenInstanceError):
        Frozen("a").name = "b"  # type: ignore[misc]


def test_a_record_without_equality_equals_itself_alone() -> None:
    one = Itself("a")
    assert {one: 1}[one] == 1
    assert one != Itself("a")


@pytest.mark.parametrize("kind", [*ProbabilitySemantics, *SamplingRelation, *Topology])
def test_kinds_are_found_by_their_text(kind: ProbabilitySemantics | SamplingRelation | Topology) -> None:
    assert kind in {str(kind)}
    assert str(kind) in frozenset({kind})
