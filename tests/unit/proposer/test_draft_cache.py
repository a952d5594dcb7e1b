from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from contracts.errors import ResourceExhausted
from models.backend import Backend
from models.load import load_backend
from proposer.draft_cache import DraftCache
from tests.helpers.tiny_models import tiny_checkpoint


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Backend:
    directory: Path = tiny_checkpoint(tmp_path_factory.mktemp("draft"))
    return load_backend(directory, kv_budget_tokens=2048, poison=True, implementation="cpu-torch")


def fresh_logits(backend: Backend, prefix: list[int]) -> torch.Tensor:
    cache = DraftCache(backend, len(prefix))
    try:
        return cache.follow(np.array(prefix))
    finally:
        cache.release()


def test_a_prompt_longer_than_one_pass_equals_its_parts(backend: Backend) -> None:
    prompt = np.random.default_rng(0).integers(0, 97, 400)
    whole, steps = DraftCache(backend, 400), DraftCache(backend, 400)
    for length in range(40, 401, 40):
        last = steps.follow(prompt[:length])
    torch.testing.assert_close(whole.follow(prompt), last, atol=1e-4, rtol=1e-4)
    whole.release()
    steps.release()


def test_after_any_history_of_accepted_and_rejected_guesses_the_logits_are_those_of_a_fresh_prefill(
    backend: Backend,
) -> None:
    rng = random.Random(3)
    for _ in range(3):
        cache = DraftCache(backend, 160)
        prefix = [rng.randrange(97) for _ in range(rng.randint(1, 9))]
        for _ in range(10):
            torch.testing.assert_close(
                cache.follow(np.array(prefix)), fresh_logits(backend, prefix), atol=1e-4, rtol=1e-4
            )
            guesses = [rng.randrange(97) for _ in range(rng.randint(0, 5))]
            for row, token in enumerate(guesses):
                cache.stage([token], [row - 1], [row + 1])
            cache.settle(range(rng.randint(0, len(guesses))))
            accepted = rng.randint(0, len(guesses))
            prefix += [*guesses[:accepted], rng.randrange(97)]
            if rng.random() < 0.2:
                prefix = prefix[: rng.randint(1, len(prefix))]
        cache.release()


def test_full_acceptance_leaves_one_token_missing_and_it_is_computed(backend: Backend) -> None:
    cache = DraftCache(backend, 32)
    cache.follow(np.array([5, 6]))
    cache.stage([7], [-1], [1])
    cache.settle([0])
    published = [5, 6, 7, 8, 9]
    torch.testing.assert_close(
        cache.follow(np.array(published)), fresh_logits(backend, published), atol=1e-4, rtol=1e-4
    )
    assert cache.tokens.tolist() == published
    cache.release()


def test_an_abandoned_round_leaves_no_ghost_rows(backend: Backend) -> None:
    cache = DraftCache(backend, 32)
    cache.follow(np.array([5, 6]))
    cache.stage([7, 8], [-1, -1], [1, 1])
    cache.stage([9], [1], [2])
    torch.testing.assert_close(cache.follow(np.array([5, 6])), fresh_logits(backend, [5, 6]), atol=1e-4, rtol=1e-4)
    cache.release()


def test_each_branch_of_a_tree_sees_its_own_path(backend: Backend) -> None:
    cache = DraftCache(backend, 32)
    cache.follow(np.array([5, 6]))
    cache.stage([7, 8], [-1, -1], [1, 1])
    logits = cache.stage([9, 9], [0, 1], [2, 2])
    for row, path in enumerate(([7, 9], [8, 9])):
        torch.testing.assert_close(logits[row], fresh_logits(backend, [5, 6, *path]), atol=1e-4, rtol=1e-4)
    cache.release()


def test_rows_that_the_backend_does_not_have_are_refused(backend: Backend) -> None:
    with pytest.raises(ResourceExhausted):
        DraftCache(backend, 4096)
