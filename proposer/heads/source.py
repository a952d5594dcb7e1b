"""A draft head as a source of the proposer service: relation, tree and law as a draft model has them, state from the target.

What an offer is follows the table of proposer/draft_model.py. Where a draft model has a KV cache of its own and nothing
else, a head needs the target's hidden rows: `HiddenStateSource` is asked for them round by round, so a head that lost its
state, or never had any, gets whatever rows it lacks and drafts on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter_ns
from typing import Protocol

from torch import Tensor

from contracts.capability import SourceDescription
from contracts.draft_law import MAX_SUPPORT
from contracts.errors import FailedPrecondition, InvalidArgument
from contracts.manifest import Manifest
from contracts.ports import ProposeRequest
from contracts.proposal import MAX_NODES, Proposal, ProposalNode, SourceCost, StateHandle
from contracts.topology import ProbabilitySemantics, SamplingRelation
from models.laws import TargetLaws
from proposer.draft_choice import RELATIONS, WITH_LAW, choice_of
from proposer.draft_tree import DraftTree, grow, grow_by_value
from proposer.heads.draft_laws import HeadLaws
from proposer.heads.families import LoadedHead
from proposer.heads.head import HeadSession, HiddenStates, Int64Array
from proposer.source import KIND, read_options, version_of
from proposer.topology.plan import CHAIN, GrownByValue, TreePlan

_RESERVED_TOKENS = 1024


class HiddenStateSource(Protocol):
    """Where a round's hidden rows come from."""

    def states(self, request: ProposeRequest) -> HiddenStates:
        """The rows of the request's session, up to row `len(request.prefix) - 2`. Raises Unavailable when there are none."""
        ...


@dataclass(frozen=True)
class HeadSettings:
    """relation, tree, support, max_nodes: as DraftModelSettings, greedy-friendly defaults. context: longest prefix followed.

    Raises InvalidArgument for values out of range, and for growth by value under another relation than beam.
    """

    relation: SamplingRelation = SamplingRelation.BEAM
    tree: TreePlan | GrownByValue = CHAIN
    support: int = 64
    max_nodes: int = 64
    context: int = 8192

    def __post_init__(self) -> None:
        if self.relation not in RELATIONS:
            known = ", ".join(sorted(RELATIONS))
            raise InvalidArgument("head.relation", f"{self.relation!r} is none of {known}")
        if isinstance(self.tree, GrownByValue) and self.relation != SamplingRelation.BEAM:
            raise InvalidArgument("head.tree", f"growth by value needs the beam relation, not {self.relation}")
        if not 1 <= self.support <= MAX_SUPPORT:
            raise InvalidArgument("head.support", f"{self.support} is outside [1, {MAX_SUPPORT}]")
        if not 1 <= self.max_nodes <= MAX_NODES:
            raise InvalidArgument("head.max_nodes", f"{self.max_nodes} is outside [1, {MAX_NODES}]")


class _Drafting:
    """One session's state and its last offer (a repeated round gets the same one)."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.head: HeadSession | None = None
        self.capacity = 0
        self.prompt_len = 0
        self.offers = 0
        self.last: tuple[object, Proposal] | None = None

    def release(self) -> None:
        if self.head is not None:
            self.head.release()
            self.head = None


class RoundRows:
    """A head's session with this round's hidden rows bound to it: what `grow` drives."""

    def __init__(self, session: HeadSession, states: HiddenStates) -> None:
        self._session, self._states = session, states

    def follow(self, prefix: Int64Array) -> Tensor:
        return self._session.follow(prefix, self._states)

    def stage(self, token_ids: Sequence[int], parents: Sequence[int], depths: Sequence[int]) -> Tensor:
        return self._session.stage(token_ids, parents, depths)

    def settle(self, path: Sequence[int]) -> None:
        """Nothing drafted is kept: its rows came from predicted states."""
        self._session.settle()


class HeadSource:
    """The source of one loaded head. Offers nothing for a prefix of one token, whose anchor no row predicted, and for one
    longer than `context`."""

    runs_inline = False

    def __init__(
        self,
        loaded: LoadedHead,
        states: HiddenStateSource,
        settings: HeadSettings | None = None,
        *,
        name: str = "head",
    ) -> None:
        self._head, self._states = loaded.head, states
        self._manifest = loaded.manifest
        self._settings = settings or HeadSettings()
        with_law = self._settings.relation in WITH_LAW
        shape = {
            "relation": self._settings.relation,
            "tree": self._settings.tree.to_json(),
            "support": self._settings.support,
            "max_nodes": self._settings.max_nodes,
            "weights": loaded.manifest.weights_sha256,
        }
        self._description = SourceDescription(
            name=name,
            kind=KIND,
            version="+".join(filter(None, (version_of(loaded.manifest.family, shape), self._settings.tree.label))),
            semantics=ProbabilitySemantics.NORMALIZED_CONDITIONAL if with_law else ProbabilitySemantics.SCORE_ONLY,
            relation=self._settings.relation,
            topology=self._settings.tree.topology,
            tokenizer_digest=loaded.manifest.tokenizer_digest,
            target_digest=loaded.manifest.target_digest,
            max_nodes=self._settings.max_nodes,
        )
        self._sessions: dict[str, _Drafting] = {}
        self._news: deque[tuple[str, Manifest | None]] = deque()

    @property
    def taps(self) -> tuple[str, ...]:
        """The hidden rows that the verifier must export."""
        return self._head.taps

    def describe(self) -> SourceDescription:
        return self._description

    def open(self, session_id: str, manifest: Manifest) -> None:
        """Notes the session; nothing is allocated before its first round."""
        self._news.append((session_id, manifest))

    def close(self, session_id: str) -> None:
        """Notes that the session's state may go; it goes before the next round of any session."""
        self._news.append((session_id, None))

    def propose(self, request: ProposeRequest) -> Proposal:
        """Has no options. See `Source.propose`.

        Raises Unavailable when the hidden rows cannot be had, ResourceExhausted when the head has no room for the session,
        FailedPrecondition where the tree was calibrated for another target, sampler or hardware and is not forced.
        """
        started = perf_counter_ns()
        read_options(request.options, {})
        self._take_note()
        session = self._sessions.get(request.manifest.session_id)
        if session is None:
            raise FailedPrecondition("session_id", f"session {request.manifest.session_id!r} is not open here")
        asked = (request.manifest.hash, request.node_budget, request.max_depth)
        if session.last is not None and session.last[0] == asked:
            return session.last[1]
        settings = self._settings
        settings.tree.check(session.manifest.target, request.policy)
        budget = min(request.node_budget, settings.max_nodes)
        depth = min(request.max_depth, settings.context - len(request.prefix))
        if self._head.max_depth is not None:
            depth = min(depth, self._head.max_depth)
        able = budget > 0 and depth > 0 and len(request.prefix) > 1
        tree = self._draft(session, request, budget, depth) if able else DraftTree()
        session.offers += 1
        proposal = self._proposal(request, tree, session.offers, (perf_counter_ns() - started) / 1e3)
        session.last = (asked, proposal)
        return proposal

    def _take_note(self) -> None:
        while self._news:
            session_id, manifest = self._news.popleft()
            present = self._sessions.get(session_id)
            if present is not None and (manifest is None or manifest.hash != present.manifest.hash):
                present.release()
                del self._sessions[session_id]
            if manifest is not None and session_id not in self._sessions:
                self._sessions[session_id] = _Drafting(manifest)

    def _draft(self, session: _Drafting, request: ProposeRequest, budget: int, depth: int) -> DraftTree:
        settings, policy = self._settings, request.policy
        if settings.relation == SamplingRelation.BEAM:
            policy = replace(policy, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0)
        session.prompt_len = session.prompt_len or len(request.prefix)
        maker = HeadLaws(
            policy,
            self._head.vocabulary,
            prompt_len=session.prompt_len,
            eos_ids=self._manifest.eos_ids,
            support=max(settings.support, settings.max_nodes),
        )

        def process(logits: Tensor, token_ids: Int64Array, parents: Int64Array) -> TargetLaws:
            return maker.laws(logits, prefix=request.prefix, token_ids=token_ids, parents=parents)

        choose = choice_of(
            settings.relation,
            policy,
            frontier=len(request.prefix),
            source=self._description.name,
            support=settings.support,
        )
        tree = settings.tree
        if isinstance(tree, GrownByValue):
            rows = self._rows(session, request, tree.staged_rows)
            return grow_by_value(
                rows,
                request.prefix,
                process,
                choose,
                top_k=tree.top_k,
                node_budget=budget,
                max_depth=min(depth, tree.depth),
            )
        shape = tree.shape(budget, depth)
        if not len(shape):
            return DraftTree()
        return grow(self._rows(session, request, settings.max_nodes), request.prefix, process, choose, shape)

    def _rows(self, session: _Drafting, request: ProposeRequest, staged: int) -> RoundRows:
        """The session's state, with room for this round's `staged` rows and for rounds to come."""
        states = self._states.states(request)
        prefix_len = len(request.prefix)
        if session.head is not None and session.capacity < prefix_len + staged:
            session.release()
        if session.head is None:
            ahead = min(request.policy.max_tokens, _RESERVED_TOKENS)
            session.capacity = min(prefix_len + ahead, self._settings.context) + staged
            session.head = self._head.open(session.capacity)
        return RoundRows(session.head, states)

    def _proposal(self, request: ProposeRequest, tree: DraftTree, generation: int, compute_us: float) -> Proposal:
        here = self._description
        nodes = tuple(
            ProposalNode(
                token,
                parent,
                depth,
                here.name,
                here.name,
                q=tree.laws[parent].probability(token) if tree.laws else None,
                score=tree.scores[index] if tree.scores else None,
            )
            for index, (token, parent, depth) in enumerate(zip(tree.tokens, tree.parents, tree.depths, strict=True))
        )
        return Proposal(
            source=here.name,
            nodes=nodes,
            semantics=here.semantics,
            relation=here.relation,
            topology=here.topology,
            round_hash=request.manifest.hash,
            laws=tree.laws,
            state=StateHandle(here.name, generation, len(request.prefix)),
            cost=SourceCost(compute_us=compute_us, miss=not nodes),
        )
