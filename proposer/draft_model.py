"""A separate draft model as a source (Leviathan et al., ICML 2023; Chen et al., 2023; trees as in SpecInfer).

What an offer *is* must be declared before any request is known, so the relation is a setting and part of the version:

    relation             semantics               children of a node                        consumed by
    independent          normalized_conditional  draws from the draft's law                rejection, block, SpecTr ...
    without_replacement  normalized_conditional  draws from it, each without the earlier   Sequoia, traversal
    shared_noise         score_only              its tokens best under the target's noise  Gumbel coupling
    beam                 score_only              its likeliest tokens                      verifiers that need no q

Greedy and membership verification, which need no q, consume all four at every temperature. Laws are the draft's under the
request's own sampling parameters, cut to `support` tokens; at temperature 0 that law is the point mass on the argmax, so a
chain of draws is the greedy chain and q is honestly 1. `beam` ranks by the edited but untempered and untruncated law: more
of its tokens meet the target's sample under membership, but they are no sample of anything, so there is no q. Scores are
path log-probabilities.

The tree is a plan (proposer/topology/plan.py), or EAGLE-2's growth by value where the relation is beam. A plan made from a
calibration is refused, round by round, to sessions that the calibration does not hold for, unless it was forced.

Penalties are computed as if the prefix at the session's first round here were the prompt. Where it was not (a restarted
service), the drafts are a little worse; q is the law they were drawn from all the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter_ns

from torch import Tensor
from torch.nn.functional import pad

from contracts.capability import SourceDescription
from contracts.draft_law import MAX_SUPPORT
from contracts.errors import FailedPrecondition, InvalidArgument
from contracts.manifest import Manifest
from contracts.ports import ProposeRequest
from contracts.proposal import MAX_NODES, Proposal, ProposalNode, SourceCost, StateHandle
from contracts.topology import ProbabilitySemantics, SamplingRelation
from models.backend import Backend
from models.laws import LawProcessor, TargetLaws
from proposer.draft_cache import DraftCache
from proposer.draft_choice import RELATIONS, WITH_LAW, choice_of
from proposer.draft_tree import DraftTree, Int64Array, grow, grow_by_value
from proposer.source import KIND, read_options, version_of
from proposer.topology.plan import CHAIN, GrownByValue, TreePlan

# A session that outgrows this many new tokens gets a larger slot and is prefilled once more; reserving max_tokens outright
# would let one request that sets no limit take the whole budget.
_RESERVED_TOKENS = 1024


@dataclass(frozen=True)
class DraftModelSettings:
    """relation: see above. tree: which shape a round gets; a chain by default. support: tokens of a draft law.

    max_nodes: the largest offer. Raises InvalidArgument for values out of range, and for growth by value under another
    relation than beam: pruning by value would change a law, and shared noise has values of its own.
    """

    relation: SamplingRelation = SamplingRelation.INDEPENDENT
    tree: TreePlan | GrownByValue = CHAIN
    support: int = 64
    max_nodes: int = 64

    def __post_init__(self) -> None:
        if self.relation not in RELATIONS:
            known = ", ".join(sorted(RELATIONS))
            raise InvalidArgument("draft_model.relation", f"{self.relation!r} is none of {known}")
        if isinstance(self.tree, GrownByValue) and self.relation != SamplingRelation.BEAM:
            raise InvalidArgument("draft_model.tree", f"growth by value needs the beam relation, not {self.relation}")
        if not 1 <= self.support <= MAX_SUPPORT:
            raise InvalidArgument("draft_model.support", f"{self.support} is outside [1, {MAX_SUPPORT}]")
        if not 1 <= self.max_nodes <= MAX_NODES:
            raise InvalidArgument("draft_model.max_nodes", f"{self.max_nodes} is outside [1, {MAX_NODES}]")


class _Drafting:
    """One session's state: its cache, where its prompt ends, and its last offer (a repeated round gets the same one)."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.cache: DraftCache | None = None
        self.prompt_len = 0
        self.offers = 0
        self.last: tuple[object, Proposal] | None = None

    def release(self) -> None:
        if self.cache is not None:
            self.cache.release()
            self.cache = None


class DraftModel:
    """The source `draft_model`: one backend of its own, one KV slot a session, allocated at the session's first round.

    tokenizer_digest: of the draft's tokenizer; admission compares it with the target's. eos_ids: banned in drafts as long
    as the request's min_tokens ban them in the target. Raises FailedPrecondition for a tree calibrated on another draft or
    relation and not forced.
    """

    runs_inline = False

    def __init__(
        self,
        backend: Backend,
        settings: DraftModelSettings | None = None,
        *,
        name: str = "draft_model",
        tokenizer_digest: str = "",
        eos_ids: Sequence[int] = (),
    ) -> None:
        self._backend = backend
        self._settings = settings or DraftModelSettings()
        self._eos_ids = tuple(eos_ids)
        self._settings.tree.check_source(backend.info.checkpoint_digest, self._settings.relation)
        with_law = self._settings.relation in WITH_LAW
        shape = {
            "relation": self._settings.relation,
            "tree": self._settings.tree.to_json(),
            "support": self._settings.support,
            "max_nodes": self._settings.max_nodes,
            "checkpoint": backend.info.checkpoint_digest,
            "dtype": backend.info.dtype,
        }
        self._description = SourceDescription(
            name=name,
            kind=KIND,
            version="+".join(filter(None, (version_of("draft_model", shape), self._settings.tree.label))),
            semantics=ProbabilitySemantics.NORMALIZED_CONDITIONAL if with_law else ProbabilitySemantics.SCORE_ONLY,
            relation=self._settings.relation,
            topology=self._settings.tree.topology,
            tokenizer_digest=tokenizer_digest,
            max_nodes=self._settings.max_nodes,
        )
        self._sessions: dict[str, _Drafting] = {}
        # Sessions open and close in another thread than the one that drives the backend, which takes note at its next call.
        self._news: deque[tuple[str, Manifest | None]] = deque()

    def describe(self) -> SourceDescription:
        return self._description

    def open(self, session_id: str, manifest: Manifest) -> None:
        """Notes the session; nothing is allocated before its first round."""
        self._news.append((session_id, manifest))

    def close(self, session_id: str) -> None:
        """Notes that the session's rows may go; they go before the next round of any session."""
        self._news.append((session_id, None))

    def propose(self, request: ProposeRequest) -> Proposal:
        """Has no options. A prefix longer than the draft's context gets an empty offer. See `Source.propose`.

        Raises ResourceExhausted when the backend has no rows left for the session; other sessions keep theirs.
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
        self._settings.tree.check(session.manifest.target, request.policy, session.manifest.verifier)
        budget = min(request.node_budget, self._settings.max_nodes)
        # A node is offered one position beyond the last row run, hence one more than the context still holds.
        depth = min(request.max_depth, self._backend.info.context_length - len(request.prefix) + 1)
        tree = self._draft(session, request, budget, depth) if budget > 0 and depth > 0 else DraftTree()
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
        vocab_size = session.manifest.target.vocab_size
        settings, policy = self._settings, request.policy
        if settings.relation == SamplingRelation.BEAM:
            policy = replace(policy, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0)
        session.prompt_len = session.prompt_len or len(request.prefix)
        processor = LawProcessor(policy, vocab_size=vocab_size, prompt_len=session.prompt_len, eos_ids=self._eos_ids)

        def process(logits: Tensor, token_ids: Int64Array, parents: Int64Array) -> TargetLaws:
            fitted = _fit(logits, vocab_size)
            return processor.laws(fitted, prefix=request.prefix, token_ids=token_ids, parents=parents)

        choose = choice_of(
            settings.relation,
            policy,
            frontier=len(request.prefix),
            source=self._description.name,
            support=settings.support,
        )
        if isinstance(settings.tree, GrownByValue):
            cache = self._cache(session, request, settings.tree.staged_rows)
            return grow_by_value(
                cache,
                request.prefix,
                process,
                choose,
                top_k=settings.tree.top_k,
                node_budget=budget,
                max_depth=min(depth, settings.tree.depth),
            )
        shape = settings.tree.shape(budget, depth)
        if not len(shape):
            return DraftTree()
        return grow(self._cache(session, request, settings.max_nodes), request.prefix, process, choose, shape)

    def _cache(self, session: _Drafting, request: ProposeRequest, staged: int) -> DraftCache:
        """The session's cache, with room for this round's `staged` rows and for rounds to come."""
        prefix_len = len(request.prefix)
        if session.cache is not None and session.cache.capacity < prefix_len + staged:
            session.release()
        if session.cache is None:
            ahead = min(request.policy.max_tokens, _RESERVED_TOKENS)
            longest = min(prefix_len + ahead, self._backend.info.context_length)
            session.cache = DraftCache(self._backend, longest + staged)
        return session.cache

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


def _fit(logits: Tensor, vocab_size: int) -> Tensor:
    """float32 [N, vocab_size]: checkpoints of one tokenizer pad their vocabularies differently."""
    missing = vocab_size - logits.shape[1]
    return pad(logits, (0, missing), value=float("-inf")) if missing > 0 else logits[:, :vocab_size]
