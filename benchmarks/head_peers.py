"""What heads are compared with along the same texts: prompt lookup, REST over the target's own answers, a draft model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from benchmarks.head_rounds import Draft, Int64Array
from benchmarks.head_trajectories import Trajectory
from contracts.sampling import SamplingPolicy
from contracts.topology import SamplingRelation
from models.backend import Backend
from models.laws import LawProcessor, TargetLaws
from proposer.draft_cache import DraftCache
from proposer.draft_choice import choice_of
from proposer.draft_tree import DraftTree, grow, grow_by_value
from proposer.prompt_lookup import ranked_matches
from proposer.topology.plan import GrownByValue, TreePlan
from proposer.training.dataset import Dataset
from retriever.query import SegmentSet
from retriever.segment import segment_from_documents
from retriever.trie import QueryLimits


def lookup_drafter(nodes: int) -> Callable[[Trajectory], Draft]:
    """Prompt lookup's chain, n-grams of 3 down to 1."""

    def draft(prefix: Int64Array) -> DraftTree:
        matches = ranked_matches(
            prefix.astype(np.int64), rule="latest", continuation="clipped", min_ngram=1, max_ngram=3, wanted=nodes
        )
        best = next(matches, None)
        tokens = [] if best is None else prefix[best.start : best.start + nodes].tolist()
        return DraftTree(tokens, list(range(-1, len(tokens) - 1)), list(range(1, len(tokens) + 1)))

    return lambda trajectory: draft


def answers_index(datasets: Sequence[Dataset]) -> SegmentSet:
    """REST's datastore: what the target itself wrote, prompts left out (evaluation prompts are in none of the data sets)."""
    documents = [one.tokens[one.answer_start :] for dataset in datasets for one in dataset.conversations(())]
    return SegmentSet([segment_from_documents(documents)])


def rest_drafter(index: SegmentSet, nodes: int, *, chain: bool, depth: int = 8) -> Callable[[Trajectory], Draft]:
    """The continuation trie of the longest suffix match; as a chain, its most frequent path."""
    limits = QueryLimits(max_suffix=16, min_suffix=1, max_continuation=depth, node_budget=64 if chain else nodes)

    def draft(prefix: Int64Array) -> DraftTree:
        found = index.retrieve(prefix, limits)
        tokens, parents, depths = found.tokens.tolist(), found.parents.tolist(), found.depths.tolist()
        if not chain:
            return DraftTree(tokens, parents, depths)
        path: list[int] = []
        row = -1
        while len(path) < nodes:
            # Rows come best first, so a node's first child is its most frequent.
            row = next((index for index, parent in enumerate(parents) if parent == row), -1)
            if row < 0:
                break
            path.append(tokens[row])
        return DraftTree(path, list(range(-1, len(path) - 1)), list(range(1, len(path) + 1)))

    return lambda trajectory: draft


def draft_model_drafter(
    backend: Backend, tree: TreePlan | GrownByValue, *, nodes: int, depth: int, vocab_size: int
) -> Callable[[Trajectory], Draft]:
    """Beams of a separate draft model, in the planned shape or grown by value."""
    policy = SamplingPolicy(temperature=1.0)
    before: list[DraftCache] = []

    def drafter_of(trajectory: Trajectory) -> Draft:
        while before:
            before.pop().release()
        cache = DraftCache(backend, len(trajectory.tokens) + 64)
        before.append(cache)
        laws = LawProcessor(policy, vocab_size=vocab_size, prompt_len=trajectory.answer_start, eos_ids=())

        def draft(prefix: Int64Array) -> DraftTree:
            def process(logits: Tensor, token_ids: Int64Array, parents: Int64Array) -> TargetLaws:
                return laws.laws(logits, prefix=prefix, token_ids=token_ids, parents=parents)

            choose = choice_of(SamplingRelation.BEAM, policy, frontier=len(prefix), source="draft", support=nodes)
            if isinstance(tree, GrownByValue):
                return grow_by_value(
                    cache,
                    prefix,
                    process,
                    choose,
                    top_k=tree.top_k,
                    node_budget=nodes,
                    max_depth=min(depth, tree.depth),
                )
            return grow(cache, prefix, process, choose, tree.shape(nodes, depth))

        return draft

    return drafter_of
