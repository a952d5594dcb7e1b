"""A retriever's index as a candidate source: its continuation trie becomes a tree of candidates, counts as scores."""

from __future__ import annotations

from itertools import repeat

from contracts.capability import SourceDescription
from contracts.errors import FailedPrecondition, InvalidArgument
from contracts.options import SourceOption
from contracts.ports import ProposeRequest, RetrieverPort
from contracts.proposal import Proposal, SourceCost, nodes_of
from contracts.retrieval import IndexDescription, Retrieval, RetrievalQuery
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology

RETRIEVAL = "retrieval"
MIN_MATCH = "min_match"
SPEC_FACTOR = "spec_factor"
MAX_SPEC_FACTOR = 64
_COUNTS, _LOOKUP, _TREE = ProbabilitySemantics.FREQUENCY, SamplingRelation.DETERMINISTIC_LOOKUP, Topology.TREE


def is_retrieval(source: str) -> bool:
    """True for `retrieval` and `retrieval:<index>`, the names of sources that live in retrievers."""
    return source == RETRIEVAL or source.startswith(f"{RETRIEVAL}:")


def index_of(source: str) -> str:
    """The index that the name of such a source says; "" where it says none."""
    return source.removeprefix(RETRIEVAL).removeprefix(":")


def describe_retrieval(
    source: str, index: IndexDescription, *, max_nodes: int, max_suffix: int, min_match: int, spec_factor: int
) -> SourceDescription:
    """What an index declares as a source. Its version is the release id: a new release is another source version.

    max_suffix: the longest suffix asked for. min_match, spec_factor: what its options are where a request sets none.
    """
    longest = min(index.max_match, max_suffix)
    return SourceDescription(
        name=source,
        kind=RETRIEVAL,
        version=index.release,
        semantics=_COUNTS,
        relation=_LOOKUP,
        topology=_TREE,
        tokenizer_digest=index.tokenizer_digest,
        max_nodes=max_nodes,
        options=(
            SourceOption(MIN_MATCH, 1, longest, min(min_match, longest)),
            SourceOption(SPEC_FACTOR, 0, MAX_SPEC_FACTOR, spec_factor),
        ),
    )


def to_proposal(source: str, answer: Retrieval, *, round_hash: str, spec_factor: int = 0) -> Proposal:
    """The trie as a proposal; counts rank (score) and are never read as q. Raises InvalidArgument for ragged arrays.

    spec_factor: the most candidates per matched token (SuffixDecoding, arXiv 2411.04975, section 4); 0: no such limit. The
    trie comes best first with parents before children, so what is left after the cut is whole.
    """
    tokens, parents, depths, counts = answer.columns
    count = len(tokens)
    if not count == len(parents) == len(depths) == len(counts):
        lengths = [len(column) for column in (tokens, parents, depths, counts)]
        raise InvalidArgument("retrieval.nodes", f"columns of {lengths} entries")
    kept = spec_factor * answer.match_length if spec_factor else count
    scores = map(float, counts)
    nodes = nodes_of(
        zip(tokens, parents, depths, repeat(source), repeat(RETRIEVAL), repeat(None), scores, strict=False)
    )
    return Proposal(
        source=source,
        nodes=nodes if kept >= count else nodes[:kept],
        semantics=_COUNTS,
        relation=_LOOKUP,
        topology=_TREE,
        round_hash=round_hash,
        cost=SourceCost(
            compute_us=answer.compute_us,
            match_length=answer.match_length,
            match_count=answer.match_count,
            truncated=answer.truncated or kept < count,
            miss=answer.match_length == 0,
        ),
    )


class RetrievalSource:
    """One index under the release that the manifest binds."""

    retrieves = True
    at_once = False

    def __init__(
        self,
        port: RetrieverPort,
        description: SourceDescription,
        index: IndexDescription,
        *,
        tenant: str,
        max_suffix: int,
        min_match: int,
        spec_factor: int,
    ) -> None:
        self._port = port
        self._index = index
        self._tenant = tenant
        self._max_suffix = max_suffix
        self._min_match = min_match
        self._spec_factor = spec_factor
        self.description = description
        self.generation = index.live_generation

    async def offer(self, request: ProposeRequest) -> Proposal:
        """Raises the retriever's errors, FailedPrecondition where it no longer serves the bound release among them, and
        where it answered from something else than what the manifests bind.

        A live generation that is gone is a miss; the rounds after it name none.
        """
        match = min(self._index.max_match, self._max_suffix)
        answer = await self._port.retrieve(
            RetrievalQuery(
                index=self._index.index,
                release=self._index.release,
                suffix=request.prefix[-match:],
                node_budget=request.node_budget,
                max_depth=min(request.max_depth, self._index.max_depth),
                min_match=min(request.options.get(MIN_MATCH, self._min_match), match),
                max_match=match,
                tenant=self._tenant,
                live_generation=self.generation,
            )
        )
        if answer.release != self._index.release or answer.live_generation != self.generation:
            raise FailedPrecondition(
                "retrieval.release",
                f"answered from {answer.release[:16]!r} at live generation {answer.live_generation}, "
                f"bound are {self._index.release[:16]!r} and {self.generation}",
            )
        if answer.live_gone:
            self.generation = 0
        spec_factor = request.options.get(SPEC_FACTOR, self._spec_factor)
        return to_proposal(request.source, answer, round_hash=request.manifest.hash, spec_factor=spec_factor)
