"""Draft models over tiny checkpoints, asked and checked the way the proposer's tests need it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from contracts.graph import check_graph, merge_by_full_prefix
from contracts.ports import ProposeRequest
from contracts.proposal import Proposal, check_proposal
from contracts.sampling import SamplingPolicy
from models.backend import Backend
from models.laws import LawProcessor, TargetLaws
from proposer.draft_cache import DraftCache
from proposer.draft_model import DraftModel
from tests.unit.proposer.rounds import Rounds, session_manifest

VOCAB = 97
PROMPT = [3, 14, 15, 92, 65]
GREEDY = SamplingPolicy(temperature=0.0, max_tokens=64)
SAMPLED = SamplingPolicy(temperature=0.8, top_p=0.9, seed=11, max_tokens=64)


def opened(source: DraftModel, policy: SamplingPolicy = GREEDY, **manifest: Any) -> Rounds:
    rounds = Rounds(session_manifest([source.describe()], policy=policy, **manifest), policy=policy)
    source.open("s", rounds.manifest)
    return rounds


def asked(source: DraftModel, request: ProposeRequest) -> Proposal:
    proposal = source.propose(request)
    budget = request.node_budget
    check_proposal(proposal, vocab_size=VOCAB, round_hash=request.manifest.hash, max_nodes=budget)
    graph = merge_by_full_prefix([proposal], budget=budget)
    check_graph(graph, vocab_size=VOCAB, max_rows=budget)
    return proposal


def target_laws(backend: Backend, policy: SamplingPolicy, prefix: list[int], proposal: Proposal) -> TargetLaws:
    """The laws of the same model as target, computed plainly: one fresh prefill a node."""
    paths: list[list[int]] = []
    for node in proposal.nodes:
        paths.append([*(paths[node.parent] if node.parent >= 0 else []), node.token])
    logits = []
    for path in ([], *paths):
        cache = DraftCache(backend, len(prefix) + len(path))
        logits.append(cache.follow(np.array([*prefix, *path])))
        cache.release()
    tokens = np.array([node.token for node in proposal.nodes], dtype=np.int64)
    parents = np.array([node.parent for node in proposal.nodes], dtype=np.int64)
    processor = LawProcessor(policy, vocab_size=VOCAB, prompt_len=len(prefix), eos_ids=())
    return processor.laws(torch.stack(logits), prefix=np.array(prefix), token_ids=tokens, parents=parents)


def tokens_of(proposal: Proposal) -> list[int]:
    return [node.token for node in proposal.nodes]
