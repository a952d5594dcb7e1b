"""The fixed plan: how a round's candidates are shared out. It looks at lengths and declarations, never at drawn tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from contracts.capability import SourceDescription
from contracts.manifest import SourcePlan
from contracts.topology import Topology

_NO_REACHES: Mapping[str, int] = MappingProxyType({})


def useful_depth(max_depth: int, remaining: int) -> int:
    """How deep drafting can pay: a round that may publish `remaining` tokens ends with one the target gives for free."""
    return max(0, min(max_depth, remaining - 1))


def shares(
    budget: int, depth: int, sources: Sequence[SourceDescription], reaches: Mapping[str, int] = _NO_REACHES
) -> tuple[SourcePlan, ...]:
    """Shares `budget` candidates over the sources in the order given; sources left without a share are not asked.

    A sequence takes one full chain of `depth`. A tree or set takes an equal part of what is left with those that follow,
    rounded up: which of them is worth more is for the choice among what they offer (docs/decisions/0010), and drafters that
    merge as SpecInfer's do count alike. No source takes more than it declares. The shares add up to at most `budget`; what
    a source leaves unused in a round stays unused. reaches: by source, how deep it is asked at most where that is less.
    """
    plan: list[SourcePlan] = []
    left = budget
    for index, source in enumerate(sources):
        even = -(-left // (len(sources) - index))
        reach = min(depth, reaches.get(source.name, depth))
        want = reach if source.topology is Topology.SEQUENCE else even
        share = min(want, left, source.max_nodes)
        if share > 0 and reach > 0:
            plan.append(SourcePlan(source.name, share, reach))
            left -= share
    return tuple(plan)
