"""Enumerations by name, and numbers that must be sane before anything is made of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Generic, TypeVar

from contracts.capability import Exactness
from contracts.errors import InvalidArgument
from contracts.receipt import Closing, FinishReason
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology
from protos.draftproof.v1 import candidate_pb2, capability_pb2, receipt_pb2

E = TypeVar("E", bound=StrEnum)


class EnumTable(Generic[E]):
    """Two-way table between a StrEnum and a protobuf enum whose values are the same names under a prefix."""

    def __init__(self, members: type[E], wrapper: Any, prefix: str, *, unspecified: E | None = None) -> None:
        self._to: dict[E, int] = {}
        for member in members:
            name = "UNSPECIFIED" if member is unspecified else member.name
            self._to[member] = wrapper.Value(f"{prefix}_{name}")
        self._from: Mapping[int, E] = {number: member for member, number in self._to.items()}
        self._names = ", ".join(sorted(f"{prefix}_{member.name}" for member in members if member is not unspecified))

    def encode(self, member: E) -> Any:
        """The protobuf value."""
        return self._to[member]

    def decode(self, number: int, field: str) -> E:
        """The member. Raises InvalidArgument naming `field` for unspecified and unknown values."""
        member = self._from.get(number)
        if member is None:
            raise InvalidArgument(field, f"{number} is not one of {self._names}")
        return member


SEMANTICS = EnumTable(ProbabilitySemantics, candidate_pb2.ProbabilitySemantics, "PROBABILITY_SEMANTICS")
RELATIONS = EnumTable(SamplingRelation, candidate_pb2.SamplingRelation, "SAMPLING_RELATION")
TOPOLOGIES = EnumTable(Topology, candidate_pb2.Topology, "TOPOLOGY")
EXACTNESS = EnumTable(Exactness, capability_pb2.Exactness, "EXACTNESS")
CLOSINGS = EnumTable(Closing, receipt_pb2.Closing, "CLOSING")
FINISHES = EnumTable(FinishReason, receipt_pb2.FinishReason, "FINISH_REASON", unspecified=FinishReason.NONE)


def finite(value: float, field: str) -> float:
    """The number itself. Raises InvalidArgument for NaN and infinities."""
    if not math.isfinite(value):
        raise InvalidArgument(field, f"{value} is not finite")
    return value


def duration(value: float, field: str) -> float:
    """A finite, non-negative number of microseconds."""
    if not 0.0 <= value < math.inf:
        raise InvalidArgument(field, f"{value} is not a duration")
    return value


def within(value: int, field: str, low: int, high: int) -> int:
    """The integer itself. Raises InvalidArgument outside [low, high]."""
    if not low <= value <= high:
        raise InvalidArgument(field, f"{value} is outside [{low}, {high}]")
    return value
