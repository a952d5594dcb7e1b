"""Slots that share the start of a context: bit for bit a fresh prefill, written apart, paid for once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from contracts.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from models.backend import KVSlot, PrefixBackend
from models.load import Implementation
from tests.unit.models.steps import IMPLEMENTATIONS, chain, load_on_cpu, prefill, random_tree, tree_block

TAPS = ("layer:1", "final_norm")
CHUNK = 64
TOKENS = np.random.default_rng(5).integers(0, 97, 200).tolist()


def loaded(tiny: Path, implementation: Implementation, budget: int = 2048) -> PrefixBackend:
    backend = load_on_cpu(tiny, implementation=implementation, kv_budget_tokens=budget, poison=True)
    assert isinstance(backend, PrefixBackend)
    return backend


def fill(backend: PrefixBackend, slot: KVSlot, tokens: list[int], chunk: int = CHUNK) -> None:
    while slot.length < len(tokens):
        prefill(backend, slot, tokens[slot.length : slot.length + chunk])


def probe(backend: PrefixBackend, slot: KVSlot) -> list[torch.Tensor]:
    """Logits and taps of a tree below the committed rows; leaves the slot as it was."""
    tokens, parents = random_tree(np.random.default_rng(7), 11, 97)
    result = backend.forward([tree_block(slot, tokens, parents)], taps=TAPS)
    backend.rollback(slot)
    return [result.logits[0].clone(), *(result.hidden[tap][0].clone() for tap in TAPS)]


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True)) and bool(torch.isfinite(left[0]).all())


@pytest.mark.parametrize(
    ("implementation", "shared"),
    [("cpu-llvm", n) for n in (1, 15, 16, 63, 64, 65, 127, 128, 150)]
    + [(name, n) for name in ("cpu-torch", "cuda-graph", "transformers") for n in (64, 128)],
)
def test_a_fork_says_bit_for_bit_what_a_fresh_prefill_says(
    tiny: Path, implementation: Implementation, shared: int
) -> None:
    """Of whole prefill chunks under every backend, of any rows where the backend claims row invariance."""
    backend = loaded(tiny, implementation)
    donor, fresh = backend.allocate(160), backend.allocate(220)
    fill(backend, donor, TOKENS[:150])
    fork = backend.fork(donor, shared, 220)
    assert (fork.length, fork.staged, fork.capacity) == (shared, 0, 220)
    own = TOKENS[:shared] + TOKENS[::-1][:40]
    fill(backend, fork, own)
    fill(backend, fresh, own)
    assert same(probe(backend, fork), probe(backend, fresh))


@pytest.mark.parametrize("chunk", [1, 7, 16, 64, 150])
def test_chunk_borders_do_not_change_a_bit_where_row_invariance_is_claimed(tiny: Path, chunk: int) -> None:
    backend = loaded(tiny, "cpu-llvm")
    whole, cut = backend.allocate(170), backend.allocate(170)
    fill(backend, whole, TOKENS[:150], 150)
    fill(backend, cut, TOKENS[:150], chunk)
    assert same(probe(backend, whole), probe(backend, cut))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_neither_slot_sees_what_the_other_does_afterwards(tiny: Path, implementation: Implementation) -> None:
    backend = loaded(tiny, implementation)
    donor = backend.allocate(160)
    fill(backend, donor, TOKENS[:100])
    before = probe(backend, donor)
    fork = backend.fork(donor, 100, 160)
    untouched = probe(backend, fork)
    backend.forward([chain(donor, [1, 2, 3]), chain(fork, [4, 5, 6])])
    backend.commit(donor, [0, 1])
    backend.commit(fork, [0, 1, 2])
    backend.truncate(donor, 100)
    assert same(probe(backend, donor), before)
    backend.release(donor)
    backend.truncate(fork, 100)
    assert same(probe(backend, fork), untouched)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_slot_cut_back_into_shared_pages_copies_before_it_writes(tiny: Path, implementation: Implementation) -> None:
    backend = loaded(tiny, implementation)
    donor = backend.allocate(160)
    fill(backend, donor, TOKENS[:130])
    before = probe(backend, donor)
    fork = backend.fork(donor, 128, 160)
    free = backend.usage.free_tokens
    backend.truncate(fork, 64)
    backend.truncate(fork, 20)
    prefill(backend, fork, TOKENS[::-1][:30])
    assert backend.usage.free_tokens < free
    assert same(probe(backend, donor), before)
    fresh = backend.allocate(160)
    prefill(backend, fresh, TOKENS[:64])
    backend.truncate(fresh, 20)
    prefill(backend, fresh, TOKENS[::-1][:30])
    assert same(probe(backend, fork), probe(backend, fresh))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_shared_rows_are_paid_for_once_and_given_back_with_their_last_holder(
    tiny: Path, implementation: Implementation
) -> None:
    backend = loaded(tiny, implementation, budget=512)
    donor = backend.allocate(256)
    fill(backend, donor, TOKENS[:192])
    assert backend.usage.free_tokens == 256
    forks = [backend.fork(donor, 192, 256) for _ in range(4)]
    assert backend.usage.free_tokens == 0
    with pytest.raises(ResourceExhausted, match="0 of 512 left"):
        backend.fork(donor, 192, 256)
    expected = probe(backend, forks[0])
    backend.park(donor, 150)
    assert backend.usage.parked_tokens == 0
    for fork in forks[1:]:
        backend.release(fork)
    assert same(probe(backend, forks[0]), expected)
    backend.release(forks[0])
    usage = backend.usage
    assert (usage.free_tokens + usage.parked_tokens, usage.total_tokens) == (512, 512)
    assert 150 <= usage.parked_tokens <= 192
    backend.release(donor)
    assert backend.usage.free_tokens == 512


def test_a_parked_slot_takes_no_rows_and_still_lends_its_own(tiny: Path) -> None:
    backend = loaded(tiny, "cpu-llvm")
    donor, fresh = backend.allocate(160), backend.allocate(160)
    for slot in (donor, fresh):
        fill(backend, slot, TOKENS[:100])
    expected = probe(backend, fresh)
    backend.park(donor, 100)
    backend.park(donor, 100)
    with pytest.raises(ResourceExhausted, match="room for 0"):
        backend.forward([chain(donor, [1])])
    assert same(probe(backend, backend.fork(donor, 100, 160)), expected)


def test_what_cannot_be_shared_is_refused_and_costs_nothing(tiny: Path) -> None:
    backend = loaded(tiny, "cpu-torch", budget=128)
    donor = backend.allocate(64)
    fill(backend, donor, TOKENS[:20])
    for length, capacity in ((21, 64), (-1, 64), (20, 19)):
        with pytest.raises(InvalidArgument, match="length"):
            backend.fork(donor, length, capacity)
    with pytest.raises(ResourceExhausted):
        backend.fork(donor, 20, 128)
    backend.release(donor)
    with pytest.raises(FailedPrecondition):
        backend.fork(donor, 1, 16)
    with pytest.raises(FailedPrecondition):
        backend.park(donor, 1)
    assert backend.usage.free_tokens == 128


def test_the_budget_is_stated_in_tokens_and_bytes(tiny: Path) -> None:
    backend = loaded(tiny, "cpu-llvm", budget=1000)
    assert backend.usage.total_tokens == 1024
    # 3 layers, 2 key-value heads of 16 dimensions, keys and values, float32.
    assert backend.usage.token_bytes == 3 * 2 * 2 * 16 * 4
