"""What all sources share that draft a tree over a state of their own: sessions, repeats, plans, relations, the offer.

Subclasses say what the state is, how deep it can draft and what law it drafts by (draft_model.py, heads/source.py). What an
offer *is* follows from the relation, by the table in draft_model.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import perf_counter_ns
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from contracts.capability import SourceDescription
from contracts.draft_law import MAX_SUPPORT
from contracts.errors import FailedPrecondition, InvalidArgument
from contracts.manifest import Manifest
from contracts.options import check_options
from contracts.ports import ProposeRequest
from contracts.proposal import MAX_NODES, Proposal, ProposalNode, SourceCost, StateHandle
from contracts.sampling import SamplingPolicy
from contracts.topology import ProbabilitySemantics, SamplingRelation
from proposer.draft_choice import RELATIONS, WITH_LAW, Choose, choice_of
from proposer.draft_tree import Drafter, DraftTree, Process, grow, grow_by_value
from proposer.source import KIND, version_of
from proposer.topology.plan import CHAIN, GrownByValue, TreePlan

# A session that outgrows this many new tokens gets a larger state and is followed anew; reserving max_tokens outright would
# let one request that sets no limit take the whole budget.
RESERVED_TOKENS = 1024


@dataclass(frozen=True)
class TreeSettings:
    """relation: see draft_model.py. tree: which shape a round gets; a chain by default. support: tokens of a draft law.

    max_nodes: the largest offer. Raises InvalidArgument for values out of range, and for growth by value under another
    relation than beam: pruning by value would change a law, and shared noise has values of its own.
    """

    FIELD: ClassVar[str] = "tree_source"

    relation: SamplingRelation = SamplingRelation.INDEPENDENT
    tree: TreePlan | GrownByValue = CHAIN
    support: int = 64
    max_nodes: int = 64

    def __post_init__(self) -> None:
        if self.relation not in RELATIONS:
            known = ", ".join(sorted(RELATIONS))
            raise InvalidArgument(f"{self.FIELD}.relation", f"{self.relation!r} is none of {known}")
        if isinstance(self.tree, GrownByValue) and self.relation != SamplingRelation.BEAM:
            raise InvalidArgument(f"{self.FIELD}.tree", f"growth by value needs the beam relation, not {self.relation}")
        if not 1 <= self.support <= MAX_SUPPORT:
            raise InvalidArgument(f"{self.FIELD}.support", f"{self.support} is outside [1, {MAX_SUPPORT}]")
        if not 1 <= self.max_nodes <= MAX_NODES:
            raise InvalidArgument(f"{self.FIELD}.max_nodes", f"{self.max_nodes} is outside [1, {MAX_NODES}]")


class Releasable(Protocol):
    """A session's drafting state, which can be given back."""

    def release(self) -> None: ...


R = TypeVar("R", bound=Releasable)


class Drafting(Generic[R]):
    """One session: its state, where its prompt ends, and its last offer (a repeated round gets the same one)."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.prompt_len = 0
        self.offers = 0
        self.last: tuple[object, Proposal] | None = None
        self._state: R | None = None
        self._capacity = 0

    @property
    def state(self) -> R | None:
        """The state, whatever room it has."""
        return self._state

    def state_for(self, rows: int) -> R | None:
        """The state if it has room for so many rows; one that has not is given back."""
        if self._state is not None and self._capacity < rows:
            self.release()
        return self._state

    def take(self, state: R, capacity: int) -> R:
        """The state from now on."""
        self._state, self._capacity = state, capacity
        return state

    def release(self) -> None:
        """Gives the state back, if there is one."""
        if self._state is not None:
            self._state.release()
            self._state = None


class TreeSource(ABC, Generic[R]):
    """A source named `name`, of one drafter. version: what its version is computed from beside the settings.

    drafter: digest of the drafter's weights. taps, prompt_rows: the target's hidden rows that it reads, and of the prompt's
    so many, the last (0: all). Raises FailedPrecondition for a tree calibrated on another drafter or relation, not forced.
    """

    runs_inline = False

    def __init__(
        self,
        settings: TreeSettings,
        *,
        name: str,
        family: str,
        version: Mapping[str, Any],
        drafter: str,
        tokenizer_digest: str,
        target_digest: str = "",
        taps: tuple[str, ...] = (),
        prompt_rows: int = 0,
    ) -> None:
        settings.tree.check_source(drafter, settings.relation)
        shape = {
            "relation": settings.relation,
            "tree": settings.tree.to_json(),
            "support": settings.support,
            "max_nodes": settings.max_nodes,
            **version,
        }
        with_law = settings.relation in WITH_LAW
        self._tree_settings = settings
        self._description = SourceDescription(
            name=name,
            kind=KIND,
            version="+".join(filter(None, (version_of(family, shape), settings.tree.label))),
            semantics=ProbabilitySemantics.NORMALIZED_CONDITIONAL if with_law else ProbabilitySemantics.SCORE_ONLY,
            relation=settings.relation,
            topology=settings.tree.topology,
            tokenizer_digest=tokenizer_digest,
            target_digest=target_digest,
            max_nodes=settings.max_nodes,
            taps=taps,
            prompt_rows=prompt_rows,
        )
        self._sessions: dict[str, Drafting[R]] = {}
        # Sessions open and close in another thread than the one that drafts, which takes note at its next call.
        self._news: deque[tuple[str, Manifest | None]] = deque()

    def describe(self) -> SourceDescription:
        return self._description

    def open(self, session_id: str, manifest: Manifest) -> None:
        """Notes the session; nothing is allocated before its first round."""
        self._news.append((session_id, manifest))

    def close(self, session_id: str) -> None:
        """Notes that the session's state may go; it goes with `settle` or the next round of any session."""
        self._news.append((session_id, None))

    def settle(self) -> None:
        """Gives back the state of sessions that were closed. By the thread that drafts."""
        self._take_note()

    def propose(self, request: ProposeRequest) -> Proposal:
        """Has no options. Where the source can draft nothing (no depth is left, say) the offer is empty. A request for no
        candidates only gets the state ready for those to come.

        Raises ResourceExhausted when there is no room for the session (others keep theirs), FailedPrecondition for a session
        not open here and where the tree was calibrated for another target, sampler or hardware and is not forced.
        """
        started = perf_counter_ns()
        check_options(request.options, self._description.options)
        self._take_note()
        session = self._sessions.get(request.manifest.session_id)
        if session is None:
            raise FailedPrecondition("session_id", f"session {request.manifest.session_id!r} is not open here")
        if request.node_budget == 0:
            self.prepare(session, request)
            return self._proposal(request, DraftTree(), session.offers, (perf_counter_ns() - started) / 1e3)
        asked = (request.manifest.hash, request.node_budget, request.max_depth)
        if session.last is not None and session.last[0] == asked:
            return session.last[1]
        settings = self._tree_settings
        settings.tree.check(session.manifest.target, request.policy, session.manifest.verifier)
        budget = min(request.node_budget, settings.max_nodes)
        depth = min(request.max_depth, self.reach(len(request.prefix)))
        session.prompt_len = session.prompt_len or len(request.prefix)
        tree = self.draft(session, request, budget, depth) if budget > 0 and depth > 0 else DraftTree()
        session.offers += 1
        proposal = self._proposal(request, tree, session.offers, (perf_counter_ns() - started) / 1e3)
        session.last = (asked, proposal)
        return proposal

    @abstractmethod
    def reach(self, prefix_len: int) -> int:
        """How deep can be drafted after a prefix of so many tokens; 0 or less for not at all."""

    @abstractmethod
    def process_of(self, session: Drafting[R], request: ProposeRequest, policy: SamplingPolicy) -> Process:
        """From logits to the laws that are drafted by, under `policy`."""

    @abstractmethod
    def drafter_of(self, session: Drafting[R], request: ProposeRequest, staged: int) -> Drafter:
        """The session's state with room for `staged` drafted rows."""

    def draft(self, session: Drafting[R], request: ProposeRequest, budget: int, depth: int) -> DraftTree:
        """The round's tree. budget, depth: at least 1."""
        settings = self._tree_settings
        choose, process = self.chosen_by(session, request)
        tree = settings.tree
        if isinstance(tree, GrownByValue):
            return grow_by_value(
                self.drafter_of(session, request, tree.staged_rows),
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
        return grow(self.drafter_of(session, request, settings.max_nodes), request.prefix, process, choose, shape)

    def chosen_by(self, session: Drafting[R], request: ProposeRequest) -> tuple[Choose, Process]:
        """How the round's children are chosen, and the laws that they are chosen by."""
        settings, policy = self._tree_settings, request.policy
        if settings.relation == SamplingRelation.BEAM:
            policy = replace(policy, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0)
        choose = choice_of(
            settings.relation,
            policy,
            frontier=len(request.prefix),
            source=self._description.name,
            support=settings.support,
        )
        return choose, self.process_of(session, request, policy)

    def prepare(self, session: Drafting[R], request: ProposeRequest) -> None:
        """Brings the session's state as far as can be before a round asks."""

    def _take_note(self) -> None:
        while self._news:
            session_id, manifest = self._news.popleft()
            present = self._sessions.get(session_id)
            if present is not None and (manifest is None or manifest.hash != present.manifest.hash):
                present.release()
                del self._sessions[session_id]
            if manifest is not None and session_id not in self._sessions:
                self._sessions[session_id] = Drafting(manifest)

    def _proposal(self, request: ProposeRequest, tree: DraftTree, generation: int, compute_us: float) -> Proposal:
        here = self._description
        name, laws, nothing = here.name, tree.laws, [None] * len(tree.tokens)
        qs = (
            [laws[parent].probability(token) for token, parent in zip(tree.tokens, tree.parents, strict=True)]
            if laws
            else nothing
        )
        placed = zip(tree.tokens, tree.parents, tree.depths, qs, tree.scores or nothing, strict=True)
        nodes = tuple(
            [ProposalNode(token, parent, depth, name, name, q, score) for token, parent, depth, q, score in placed]
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
