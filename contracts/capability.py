"""Capability negotiation: a pair of proposal and verifier that is not provably compatible never reaches the target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from contracts.errors import FailedPrecondition, InvalidArgument
from contracts.graph import CandidateGraph
from contracts.options import SourceOption
from contracts.sampling import SamplingPolicy
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology

ALL_SEMANTICS = frozenset(ProbabilitySemantics)
ALL_RELATIONS = frozenset(SamplingRelation)
ROW_TOPOLOGIES = frozenset({Topology.SEQUENCE, Topology.SET, Topology.TREE})


class Exactness(StrEnum):
    """A verifier's promise about the published tokens' law."""

    EXACT = "exact"
    HEURISTIC = "heuristic"
    APPROXIMATE = "approximate"


@dataclass(frozen=True)
class VerifierCapability:
    """What one verification algorithm accepts and promises.

    needs_law: walks draws with their laws (q). identical_laws: all draws at a parent must share one law.
    single_source: its proof covers one drafter only. greedy_only / sampling_only: temperatures it is defined for.
    """

    name: str
    exactness: Exactness
    promise: str
    semantics: frozenset[ProbabilitySemantics]
    relations: frozenset[SamplingRelation]
    topologies: frozenset[Topology]
    needs_law: bool = False
    identical_laws: bool = False
    single_source: bool = False
    greedy_only: bool = False
    sampling_only: bool = False


@dataclass(frozen=True)
class SourceDescription:
    """A proposer's declaration. `version` is the digest of what shapes its offers; digests bind it to its target.

    `taps`: the target's hidden rows that it reads (contracts/hidden.py); the verifier exports those of all bound sources.
    `prompt_rows`: of the prompt's hidden rows it reads so many, the last; 0: all of them.
    `options`: what requests may set of it.
    """

    name: str
    kind: str
    version: str
    semantics: ProbabilitySemantics
    relation: SamplingRelation
    topology: Topology
    tokenizer_digest: str = ""
    target_digest: str = ""
    max_nodes: int = 64
    taps: tuple[str, ...] = ()
    options: tuple[SourceOption, ...] = ()
    prompt_rows: int = 0

    def to_json(self) -> dict[str, Any]:
        """A plain mapping of every field, for manifests."""
        return {**self.__dict__, "options": [dict(option.__dict__) for option in self.options]}


def taps_of(sources: Iterable[SourceDescription]) -> tuple[str, ...]:
    """The taps that any of the sources reads, in order of their names."""
    return tuple(sorted({tap for source in sources for tap in source.taps}))


def _refuse(field: str, verifier: str, message: str) -> FailedPrecondition:
    return FailedPrecondition(field, f"verifier {verifier!r} {message}")


def _check_kinds(
    capability: VerifierCapability,
    source: str,
    semantics: ProbabilitySemantics,
    relation: SamplingRelation,
    topology: Topology,
) -> None:
    if semantics not in capability.semantics:
        raise _refuse(
            "sources.semantics", capability.name, f"does not accept {semantics} semantics (source {source!r})"
        )
    if relation not in capability.relations:
        raise _refuse(
            "sources.relation", capability.name, f"does not accept the {relation} relation (source {source!r})"
        )
    if topology not in capability.topologies:
        raise _refuse("sources.topology", capability.name, f"does not accept a {topology} (source {source!r})")


def check_made_for(source: SourceDescription, *, tokenizer_digest: str, target_digest: str) -> None:
    """Raises FailedPrecondition for a source that is bound to another tokenizer or target than these."""
    if source.tokenizer_digest and source.tokenizer_digest != tokenizer_digest:
        raise FailedPrecondition(
            "sources.tokenizer_digest", f"source {source.name!r} uses another tokenizer than the target"
        )
    if source.target_digest and source.target_digest != target_digest:
        raise FailedPrecondition("sources.target_digest", f"source {source.name!r} was built for another target")


def admit(
    capability: VerifierCapability,
    sources: Sequence[SourceDescription],
    policy: SamplingPolicy,
    *,
    exact_mode: bool,
    tokenizer_digest: str,
    target_digest: str,
) -> None:
    """The admission check of a session, before any work. Raises FailedPrecondition naming what does not fit."""
    if exact_mode and capability.exactness is not Exactness.EXACT:
        raise _refuse("exactness", capability.name, f"is {capability.exactness}; exact mode never binds it")
    if capability.greedy_only and not policy.greedy:
        raise _refuse(
            "sampling.temperature", capability.name, f"is defined at temperature 0 only, not {policy.temperature}"
        )
    if capability.sampling_only and policy.greedy:
        raise _refuse("sampling.temperature", capability.name, "is defined at temperatures above 0 only")
    population = {SamplingRelation.POPULATION}
    if capability.relations == population and {source.relation for source in sources} != population:
        raise _refuse(
            "verifier",
            capability.name,
            "weighs a group of sessions whose result exists only at the end; a session that streams cannot bind it",
        )
    for source in sources:
        _check_kinds(capability, source.name, source.semantics, source.relation, source.topology)
        check_made_for(source, tokenizer_digest=tokenizer_digest, target_digest=target_digest)
    if len(sources) > 1 and (capability.single_source or capability.topologies == {Topology.SEQUENCE}):
        raise _refuse("sources", capability.name, f"is proved for one source, {len(sources)} given")


def bind(capability: VerifierCapability, graph: CandidateGraph) -> None:
    """The per-round check on the merged graph (M7.7 section 0x02A). Raises FailedPrecondition before the target runs."""
    if not len(graph):
        return
    if not graph.semantics <= capability.semantics:
        semantics = min(graph.semantics - capability.semantics)
        raise _refuse("proposal.semantics", capability.name, f"does not accept {semantics} semantics")
    if not graph.relations <= capability.relations:
        relation = min(graph.relations - capability.relations)
        raise _refuse("proposal.relation", capability.name, f"does not accept the {relation} relation")
    # A graph of rows has one of the three topologies of rows: which, matters to few.
    if not capability.topologies >= ROW_TOPOLOGIES and graph.topology not in capability.topologies:
        raise _refuse("proposal.topology", capability.name, f"does not accept a {graph.topology}")
    if capability.needs_law and any(draw.law < 0 for draw in graph.draws):
        raise _refuse("proposal.laws", capability.name, "needs the law of every draw")
    if capability.single_source and len({draw.source for draw in graph.draws}) > 1:
        raise _refuse("proposal.source", capability.name, "is proved for one source")
    if capability.identical_laws:
        for parent, draws in graph.draws_at.items():
            if len({graph.laws[draw.law] for draw in draws}) > 1:
                raise _refuse("proposal.laws", capability.name, f"needs one law for all draws at row {parent}")


def choose(capabilities: Iterable[VerifierCapability], requested: str, policy: SamplingPolicy) -> VerifierCapability:
    """The requested verifier, or by default greedy at temperature 0 and target-sample membership above it.

    Raises InvalidArgument naming the known ones if the name is unknown.
    """
    known = {capability.name: capability for capability in capabilities}
    name = requested or ("greedy" if policy.greedy else "membership")
    if name not in known:
        raise InvalidArgument("verifier", f"unknown verifier {name!r}; known: {', '.join(sorted(known))}")
    return known[name]
