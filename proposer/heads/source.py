"""A draft head as a source of the proposer service: relation, tree and law as a draft model has them, state from the target.

What an offer is follows the table of proposer/draft_model.py. Where a draft model has a KV cache of its own and nothing
else, a head needs the target's hidden rows: `HiddenStateSource` is asked for them round by round, so a head that lost its
state, or never had any, gets whatever rows it lacks and drafts on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from contracts.errors import InvalidArgument
from contracts.ports import ProposeRequest
from contracts.sampling import SamplingPolicy
from contracts.topology import SamplingRelation
from models.laws import TargetLaws
from proposer.draft_tree import DraftTree, Process
from proposer.heads.draft_laws import HeadLaws, edits
from proposer.heads.families import LoadedHead
from proposer.heads.head import ROUND_ROWS, Grown, HeadSession, HiddenStates, Int64Array, grows
from proposer.heads.ranked_tree import best_of
from proposer.topology.plan import GrownByValue
from proposer.tree_source import RESERVED_TOKENS, Drafting, TreeSettings, TreeSource

# What an event loop may stand still for, where the alternative is another thread.
QUICK_US = 8000.0


class HiddenStateSource(Protocol):
    """Where a round's hidden rows come from."""

    def states(self, request: ProposeRequest) -> HiddenStates:
        """The rows of the request's session, up to row `len(request.prefix) - 2`. Raises Unavailable when there are none."""
        ...

    def so_far(self, request: ProposeRequest) -> tuple[HiddenStates, int]:
        """What is there of them, and how many rows that is. Raises as `states` where none are."""
        ...


@dataclass(frozen=True)
class HeadSettings(TreeSettings):
    """As TreeSettings, with greedy-friendly defaults. context: longest prefix followed, at least 1. floor: least path
    probability, by the head's own account, of what a tree by value offers. parent_floor: of a node that is given children,
    where that is more. prompt_rows: of the prompt's hidden rows the head reads so many, the last; 0: all.
    """

    FIELD: ClassVar[str] = "head"

    relation: SamplingRelation = SamplingRelation.BEAM
    context: int = 8192
    floor: float = 0.0
    parent_floor: float = 0.0
    prompt_rows: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.context < 1:
            raise InvalidArgument("head.context", f"{self.context} is below 1")
        for name, floor in (("floor", self.floor), ("parent_floor", self.parent_floor)):
            if not 0.0 <= floor < 1.0:
                raise InvalidArgument(f"head.{name}", f"{floor} is outside [0, 1)")
        if self.prompt_rows < 0:
            raise InvalidArgument("head.prompt_rows", f"{self.prompt_rows} is below 0")


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


class HeadSource(TreeSource[HeadSession]):
    """The source of one loaded head. Offers nothing for a prefix of one token, whose anchor no row predicted, and for one
    longer than `context`. `propose` raises Unavailable when the hidden rows cannot be had.
    """

    def __init__(
        self,
        loaded: LoadedHead,
        states: HiddenStateSource,
        settings: HeadSettings | None = None,
        *,
        name: str = "head",
    ) -> None:
        self._head, self._states = loaded.head, states
        self._eos_ids = loaded.manifest.eos_ids
        self._settings = settings or HeadSettings()
        super().__init__(
            self._settings,
            name=name,
            family=loaded.manifest.family,
            version={
                "weights": loaded.manifest.weights_sha256,
                "floor": self._settings.floor,
                "parent_floor": self._settings.parent_floor,
                "prompt_rows": self._settings.prompt_rows,
            },
            drafter=loaded.manifest.weights_sha256,
            tokenizer_digest=loaded.manifest.tokenizer_digest,
            target_digest=loaded.manifest.target_digest,
            taps=self._head.taps,
            prompt_rows=self._settings.prompt_rows,
        )

    def is_quick(self, request: ProposeRequest) -> bool:
        """A round's few rows and a compiled growth, where the session's last one took no longer than that."""
        self._take_note()
        session = self._sessions.get(request.manifest.session_id)
        if session is None or session.last is None or session.last[1].cost.compute_us > QUICK_US:
            return False
        head = session.state
        if request.node_budget == 0 or not isinstance(self._settings.tree, GrownByValue) or edits(request.policy):
            return False
        return grows(head) and head.behind(len(request.prefix)) < ROUND_ROWS

    def prepare(self, session: Drafting[HeadSession], request: ProposeRequest) -> None:
        """Runs the head over the rows that are there, so that the round that drafts need not."""
        states, rows = self._states.so_far(request)
        if not rows or len(request.prefix) > self._settings.context:
            return
        head = self._state_of(session, request, self._settings.max_nodes, states.base)
        if grows(head):
            head.catch_up(request.prefix[: rows + 1], states)

    def reach(self, prefix_len: int) -> int:
        if prefix_len < 2:
            return 0
        left = self._settings.context - prefix_len
        return left if self._head.max_depth is None else min(left, self._head.max_depth)

    def process_of(self, session: Drafting[HeadSession], request: ProposeRequest, policy: SamplingPolicy) -> Process:
        maker = HeadLaws(
            policy,
            self._head.vocabulary,
            prompt_len=session.prompt_len,
            eos_ids=self._eos_ids,
            support=max(self._settings.support, self._settings.max_nodes),
        )

        def process(logits: Tensor, token_ids: Int64Array, parents: Int64Array) -> TargetLaws:
            return maker.laws(logits, prefix=request.prefix, token_ids=token_ids, parents=parents)

        return process

    def drafter_of(self, session: Drafting[HeadSession], request: ProposeRequest, staged: int) -> RoundRows:
        """The session's state, with room for this round's rows and for rounds to come."""
        states = self._states.states(request)
        return RoundRows(self._state_of(session, request, staged, states.base), states)

    def draft(self, session: Drafting[HeadSession], request: ProposeRequest, budget: int, depth: int) -> DraftTree:
        """As other sources draft; a tree by value is left to a head that grows it by itself, unless logits are edited."""
        tree, floor = self._settings.tree, self._settings.floor
        parent_floor = max(floor, self._settings.parent_floor)
        if not isinstance(tree, GrownByValue):
            return super().draft(session, request, budget, depth)
        if not edits(request.policy):
            states = self._states.states(request)
            head = self._state_of(session, request, tree.staged_rows, states.base)
            if grows(head):
                depth = min(depth, tree.depth)
                grown = head.grow(request.prefix, states, width=tree.top_k, depth=depth, floor=parent_floor)
                return best_of(grown, budget, floor)
        made = super().draft(session, request, budget, depth)
        return best_of(Grown(made.tokens, made.parents, made.depths, made.scores), budget, floor, parent_floor)

    def _state_of(self, session: Drafting[HeadSession], request: ProposeRequest, staged: int, base: int) -> HeadSession:
        """The session's state, with room for the rows from `base` on."""
        prefix_len = len(request.prefix) - base
        head = session.state_for(prefix_len + staged)
        if head is None:
            ahead = min(request.policy.max_tokens, RESERVED_TOKENS)
            staged = max(staged, self._settings.max_nodes)
            capacity = min(prefix_len + ahead, self._settings.context - base) + staged
            head = session.take(self._head.open(capacity), capacity)
        return head
