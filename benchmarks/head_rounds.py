"""Drafting along a known text: committed tokens, rounds and drafting time, for heads and for prompt lookup."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from torch import Tensor

from benchmarks.head_trajectories import CATEGORIES, Trajectory
from contracts.sampling import SamplingPolicy
from contracts.topology import SamplingRelation
from models.laws import TargetLaws
from proposer.draft_choice import choice_of
from proposer.draft_tree import DraftTree, grow, grow_by_value
from proposer.heads.draft_laws import HeadLaws
from proposer.heads.head import DraftHead, GrowingSession, HeadSession
from proposer.heads.ranked_tree import best_of
from proposer.heads.source import RoundRows
from proposer.topology.plan import GrownByValue, TreePlan

Int64Array = npt.NDArray[np.int64]
# Drafts the tree after a prefix of one trajectory.
Draft = Callable[[Int64Array], DraftTree]


@dataclass
class Tally:
    """Sums over trajectories of one category."""

    tokens: int = 0
    rounds: int = 0
    nodes: int = 0
    draft_s: float = 0.0
    accepted_at: list[int] = field(default_factory=list)

    @property
    def tokens_per_round(self) -> float:
        return self.tokens / self.rounds if self.rounds else 0.0


@dataclass
class Outcome:
    """One drafter over all trajectories."""

    by_category: dict[str, Tally]

    @property
    def total(self) -> Tally:
        every = self.by_category.values()
        return Tally(
            sum(one.tokens for one in every),
            sum(one.rounds for one in every),
            sum(one.nodes for one in every),
            sum(one.draft_s for one in every),
        )

    @property
    def mean_of_categories(self) -> float:
        """Each category counted alike."""
        values = [one.tokens_per_round for one in self.by_category.values() if one.rounds]
        return sum(values) / len(values) if values else 0.0


def drive(trajectories: Sequence[Trajectory], drafter_of: Callable[[Trajectory], Draft]) -> Outcome:
    """Run all trajectories to their ends."""
    outcome = Outcome({name: Tally() for name in CATEGORIES})
    for trajectory in trajectories:
        tally = outcome.by_category[trajectory.kind]
        draft = drafter_of(trajectory)
        tokens = trajectory.tokens.numpy()
        length = trajectory.answer_start
        while length < len(tokens):
            started = time.perf_counter()
            tree = draft(tokens[:length])
            tally.draft_s += time.perf_counter() - started
            committed = min(accepted(tree, tokens[length:]) + 1, len(tokens) - length)
            tally.nodes += len(tree.tokens)
            tally.rounds += 1
            tally.tokens += committed
            length += committed
    return outcome


def accepted(tree: DraftTree, text: Int64Array) -> int:
    """How many candidates of the tree the text goes along with."""
    row, count = -1, 0
    for wanted in text.tolist():
        match = [
            index
            for index, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True))
            if parent == row and token == wanted
        ]
        if not match:
            break
        row, count = match[0], count + 1
    return count


def head_drafter(
    head: DraftHead, tree: TreePlan | GrownByValue, *, nodes: int, depth: int, eos_ids: Sequence[int]
) -> Callable[[Trajectory], Draft]:
    """Beams of `head`: its likeliest tokens, in the planned shape or grown by value, as the head's source drafts them."""
    policy = SamplingPolicy(temperature=1.0)
    depth = depth if head.max_depth is None else min(depth, head.max_depth)
    before: list[HeadSession] = []

    def drafter_of(trajectory: Trajectory) -> Draft:
        while before:
            before.pop().release()
        session = head.open(len(trajectory.tokens) + 64)
        before.append(session)
        rows = RoundRows(session, trajectory)
        laws = HeadLaws(
            policy, head.vocabulary, prompt_len=trajectory.answer_start, eos_ids=eos_ids, support=max(nodes, 8)
        )

        def draft(prefix: Int64Array) -> DraftTree:
            if isinstance(tree, GrownByValue) and isinstance(session, GrowingSession):
                levels = min(depth, tree.depth)
                return best_of(session.grow(prefix, trajectory, width=tree.top_k, depth=levels, floor=0.0), nodes, 0.0)

            def process(logits: Tensor, token_ids: Int64Array, parents: Int64Array) -> TargetLaws:
                return laws.laws(logits, prefix=prefix, token_ids=token_ids, parents=parents)

            choose = choice_of(SamplingRelation.BEAM, policy, frontier=len(prefix), source="head", support=nodes)
            if isinstance(tree, GrownByValue):
                return grow_by_value(
                    rows, prefix, process, choose, top_k=tree.top_k, node_budget=nodes, max_depth=min(depth, tree.depth)
                )
            return grow(rows, prefix, process, choose, tree.shape(nodes, depth))

        return draft

    return drafter_of
