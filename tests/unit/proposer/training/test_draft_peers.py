"""What heads are compared with: drafters along a known text say what they are said to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from benchmarks.head_peers import answers_index, draft_model_drafter, lookup_drafter, rest_drafter
from benchmarks.head_rounds import drive
from benchmarks.head_trajectories import Trajectory
from models.load import load_backend
from proposer.topology.plan import CompleteTree, GrownByValue
from proposer.training.dataset import Dataset
from proposer.training.generate import Conversation
from tests.unit.proposer.training.tiny_data import data_set, tiny_target


def text(tokens: list[int], answer_start: int) -> Trajectory:
    return Trajectory("t", "qa", torch.tensor(tokens), answer_start, {})


def test_rest_looks_up_answers_and_never_prompts(tmp_path: Path) -> None:
    dataset = Dataset(tmp_path, {"seed": 1})
    rows = {"final_norm": np.zeros((6, 2), np.float16)}
    answers = ([5, 6, 7, 8], [5, 6, 7, 9], [5, 6, 7, 8])
    dataset.append(
        [
            Conversation(f"c{index}", "qa", np.array([40, 41, 42, *answer], np.int32), 3, rows)
            for index, answer in enumerate(answers)
        ]
    )
    index = answers_index([dataset])
    chain = rest_drafter(index, 3, chain=True)(text([1, 5], 1))(np.array([1, 5]))
    assert (chain.tokens, chain.parents, chain.depths) == ([6, 7, 8], [-1, 0, 1], [1, 2, 3])
    tree = rest_drafter(index, 8, chain=False)(text([1, 5], 1))(np.array([1, 5]))
    assert sorted(zip(tree.tokens, tree.depths, strict=True)) == [(6, 1), (7, 2), (8, 3), (9, 3)]
    assert rest_drafter(index, 8, chain=False)(text([1, 41], 1))(np.array([1, 41])).tokens == []
    # 6 7 8 | 9: everything but the last token is drafted from the first on.
    outcome = drive([text([1, 5, 6, 7, 8], 2)], rest_drafter(index, 3, chain=True))
    assert outcome.by_category["qa"].tokens_per_round == 3.0


def test_a_draft_model_that_is_the_target_drafts_its_greedy_text(tmp_path: Path) -> None:
    target = tiny_target(tmp_path)
    backend = load_backend(target, implementation="cpu-torch", kv_budget_tokens=512)
    conversations = list(data_set(tmp_path / "data", target, count=3).conversations(()))
    texts = [text(one.tokens.tolist(), one.answer_start) for one in conversations]
    answers = [len(one.tokens) - one.answer_start for one in conversations]
    chain = drive(texts, draft_model_drafter(backend, CompleteTree((1,)), nodes=3, depth=3, vocab_size=97))
    # Three drafted tokens and one of the target's own a round.
    assert chain.total.rounds == sum(-(-length // 4) for length in answers)
    tree = drive(texts, draft_model_drafter(backend, GrownByValue(2, 3), nodes=6, depth=3, vocab_size=97))
    assert tree.total.tokens == chain.total.tokens == sum(answers)
    assert tree.total.rounds < sum(answers)
    assert drive(texts, lookup_drafter(3)).total.rounds >= chain.total.rounds
