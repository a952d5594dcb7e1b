"""Families without a decoder of ours say what Transformers says of each path alone, in fp32 to 1e-4."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from contracts.errors import InvalidArgument
from models.backend import PrefixBackend
from models.load import load_backend
from tests.helpers.tiny_models import tiny_family
from tests.unit.models.fallback.families import ALTERNATING, FAMILIES, GROUPED, Reference
from tests.unit.models.steps import chain, path_tokens, prefill, random_tree, tree_block

VOCAB = 97


@pytest.mark.parametrize("family", FAMILIES)
def test_trees_of_mixed_sessions_and_what_follows_their_commits_equal_transformers_on_each_path(
    tmp_path: Path, family: str
) -> None:
    directory = tiny_family(tmp_path, family, **FAMILIES[family])
    reference = Reference(directory)
    backend = load_backend(directory, kv_budget_tokens=256, poison=True)
    assert isinstance(backend, PrefixBackend)
    assert (backend.info.family, backend.info.backend, backend.info.row_invariant_up_to) == (family, "transformers", 0)
    rng = np.random.default_rng(len(family))
    slots = [backend.allocate(capacity) for capacity in (70, 50)]
    histories = [rng.integers(0, VOCAB, length).tolist() for length in (23, 4)]
    for slot, history in zip(slots, histories, strict=True):
        got = torch.cat([prefill(backend, slot, part) for part in (history[:3], history[3:])])
        assert (got - reference.logits(history)).abs().max() < 1e-4
    for _ in range(2):
        trees = [random_tree(rng, rows, VOCAB) for rows in (11, 6)]
        blocks = [tree_block(slot, *tree) for slot, tree in zip(slots, trees, strict=True)]
        logits = backend.forward(blocks).logits
        for slot, history, (tokens, parents), rows in zip(slots, histories, trees, logits, strict=True):
            for row in range(len(tokens)):
                alone = reference.logits(history + path_tokens(tokens, parents, row))[-1]
                assert (rows[row] - alone).abs().max() < 1e-4, row
            path, row = [], int(rng.integers(0, len(tokens)))
            while row >= 0:
                path.append(row)
                row = parents[row]
            backend.commit(slot, path[::-1])
            history += [tokens[row] for row in path[::-1]]
    fork = backend.fork(slots[0], 18, 40)
    own = [*histories[0][:18], 5, 9, 2]
    assert (backend.forward([chain(fork, own[18:])]).logits[0] - reference.logits(own)[18:]).abs().max() < 1e-4


@pytest.mark.parametrize("family", ["gpt2", "opt", "gemma3_text", "falcon", "mixtral"])
def test_taps_are_transformers_hidden_states(tmp_path: Path, family: str) -> None:
    directory = tiny_family(tmp_path, family, **FAMILIES[family])
    backend = load_backend(directory, kv_budget_tokens=64)
    tokens = list(range(2, 14))
    states = Reference(directory).hidden_states(tokens)
    taps = ("layer:0", "layer:2", "final_norm", "layer:3")
    result = backend.forward([chain(backend.allocate(16), tokens)], taps=taps)
    for tap, expected in (("layer:0", states[1]), ("layer:2", states[3]), ("final_norm", states[4])):
        assert (result.hidden[tap][0] - expected).abs().max() < 1e-4, tap
    assert not torch.allclose(result.hidden["layer:3"][0], states[4], atol=1e-2)


def test_layers_of_several_streams_have_no_tap(tmp_path: Path) -> None:
    backend = load_backend(tiny_family(tmp_path, "gemma3n_text", **FAMILIES["gemma3n_text"]), kv_budget_tokens=64)
    slot = backend.allocate(16)
    assert backend.forward([chain(slot, [1, 2])], taps=("final_norm",)).hidden["final_norm"][0].shape == (2, 32)
    with pytest.raises(InvalidArgument, match="taps: the layers of 'gemma3n_text'"):
        backend.forward([chain(slot, [3])], taps=("layer:0",))
    assert slot.staged == 2


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "mixtral", "gpt_oss"])
def test_bf16_weights_compute_in_bf16(tmp_path: Path, family: str) -> None:
    directory = tiny_family(tmp_path, family, **FAMILIES[family])
    backend = load_backend(directory, dtype="bfloat16", kv_budget_tokens=64)
    assert backend.info.dtype == "bfloat16"
    assert backend.usage.token_bytes * 2 == load_backend(directory, kv_budget_tokens=64).usage.token_bytes
    expected = Reference(directory).logits([3, 1, 4, 1, 5])
    got = prefill(backend, backend.allocate(16), [3, 1, 4, 1, 5])
    assert 0 < (got - expected).abs().median() < 0.05 * expected.std()


def test_a_rotation_that_changes_with_the_length_serves_the_lengths_before_it_changes(tmp_path: Path) -> None:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.5] * 4,
        "long_factor": [4.0] * 4,
        "original_max_position_embeddings": 64,
    }
    directory = tiny_family(tmp_path, "phi3", **GROUPED, rope_parameters=rope, original_max_position_embeddings=64)
    backend = load_backend(directory, kv_budget_tokens=128)
    assert backend.info.context_length == 64
    tokens = np.random.default_rng(0).integers(0, VOCAB, 64).tolist()
    assert (prefill(backend, backend.allocate(70), tokens) - Reference(directory).logits(tokens)).abs().max() < 1e-4


def test_a_window_past_the_whole_context_hides_nothing(tmp_path: Path) -> None:
    wide = {**GROUPED, "head_dim": 8, "layer_types": ALTERNATING, "sliding_window": 4096}
    directory = tiny_family(tmp_path, "gemma3_text", **wide)
    backend = load_backend(directory, kv_budget_tokens=64)
    tokens = list(range(40))
    assert (prefill(backend, backend.allocate(40), tokens) - Reference(directory).logits(tokens)).abs().max() < 1e-4
