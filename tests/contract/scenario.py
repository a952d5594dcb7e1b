"""What contract tests send: manifests made from what a port says of itself, rounds in order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from contracts.capability import SourceDescription
from contracts.frontier import Frontier
from contracts.graph import EMPTY_GRAPH, CandidateGraph, merge_by_full_prefix
from contracts.manifest import Manifest, RoundManifest, SourcePlan
from contracts.payload import payload_digest
from contracts.ports import OpenSession, ProposeRequest, VerifierPort, VerifyRequest
from contracts.receipt import Receipt
from contracts.sampling import SamplingPolicy
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology
from tests.helpers.proposals import paths_proposal

GREEDY = SamplingPolicy(temperature=0.0, max_tokens=32)
LOOKUP = SourceDescription(
    "prompt_lookup", "proposer", "1", ProbabilitySemantics.ABSENT, SamplingRelation.DETERMINISTIC_LOOKUP, Topology.TREE
)


def manifest_of(
    target: Any, policy: SamplingPolicy = GREEDY, sources: Sequence[SourceDescription] = (LOOKUP,)
) -> Manifest:
    """A session manifest for greedy verification."""
    return Manifest(target, policy.to_json(), tuple(sources), "greedy", "exact", node_budget=16, max_depth=8)


def graph_of(*paths: Sequence[int]) -> CandidateGraph:
    """Candidates that follow the given paths from the anchor."""
    return merge_by_full_prefix([paths_proposal("prompt_lookup", paths)], budget=16)


@dataclass
class Driver:
    """One session on a verifier port, its frontier followed as an orchestrator follows it."""

    port: VerifierPort
    session_id: str
    manifest: Manifest
    frontier: Frontier
    generation: int = 0
    round_id: int = 0

    @classmethod
    async def open(
        cls,
        port: VerifierPort,
        session_id: str,
        prompt: Sequence[int],
        policy: SamplingPolicy = GREEDY,
        sources: Sequence[SourceDescription] = (LOOKUP,),
    ) -> "Driver":
        described = await port.describe()
        manifest = manifest_of(described.target, policy, sources)
        await port.open_session(OpenSession(session_id, manifest, policy, np.array(prompt, dtype=np.int64)))
        return cls(port, session_id, manifest, Frontier(prompt))

    def request(self, graph: CandidateGraph = EMPTY_GRAPH, **changes: Any) -> VerifyRequest:
        """The next round's call; `changes` are made to its manifest."""
        coordinates = replace(
            RoundManifest(
                self.manifest.hash,
                self.session_id,
                self.round_id,
                len(self.frontier),
                self.frontier.digest,
                self.generation,
                (),
            ),
            **changes,
        )
        return VerifyRequest(coordinates, graph, payload_digest(coordinates, graph), self.round_id - 1)

    async def round(self, graph: CandidateGraph = EMPTY_GRAPH) -> Receipt:
        """Runs the next round and follows its receipt."""
        receipt = await self.port.verify(self.request(graph))
        self.follow(receipt)
        return receipt

    def follow(self, receipt: Receipt) -> None:
        self.frontier.publish(np.array(receipt.tokens))
        self.generation = receipt.generation
        self.round_id += 1


def propose_request(
    manifest: Manifest,
    prefix: Sequence[int],
    *,
    session_id: str = "s",
    round_id: int = 0,
    source: str = "prompt_lookup",
    **changes: Any,
) -> ProposeRequest:
    """A call of one source after `prefix`."""
    coordinates = RoundManifest(
        manifest.hash,
        session_id,
        round_id,
        len(prefix),
        Frontier(prefix).digest,
        round_id,
        (SourcePlan(source, 8, 8),),
    )
    request = ProposeRequest(source, coordinates, GREEDY, np.array(prefix, dtype=np.int64), 8, 8)
    return replace(request, **changes)
