"""Each family, option and implementation computes Transformers' logits, in fp32 to 1e-4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from models.backend import RowBlock
from models.load import Implementation
from tests.helpers.tiny_models import tiny_checkpoint
from tests.unit.models.steps import IMPLEMENTATIONS, load_on_cpu, prefill

THETA = {"rope_theta": 10000.0}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"vocab_size": 5}),
    ("llama", {"attention_bias": True, "tie_word_embeddings": True}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, **THETA}}),
    (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
                **THETA,
            }
        },
    ),
    (
        "llama",
        {"rope_parameters": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, **THETA}},
    ),
    ("mistral", {}),
    ("mistral", {"sliding_window": 6}),
    ("mistral", {"sliding_window": 19}),
    ("qwen2", {}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    ("qwen3", {}),
    ("qwen3", {"head_dim": 12, "attention_bias": True, "tie_word_embeddings": True}),
    ("llama", {"hidden": 20, "heads": 5, "kv_heads": 1, "head_dim": 4}),
    ("llama", {"hidden": 28, "heads": 7, "kv_heads": 7, "head_dim": 20}),
]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("family", "options"), CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)])
def test_logits_equal_transformers_however_the_context_is_chunked(
    tmp_path: Path, family: str, options: dict[str, Any], implementation: Implementation
) -> None:
    directory = tiny_checkpoint(tmp_path, family, **options)
    reference = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager").eval()
    backend = load_on_cpu(directory, implementation=implementation, poison=True)
    tokens = np.random.default_rng(0).integers(0, reference.config.vocab_size, 45).tolist()
    with torch.inference_mode():
        expected = reference(torch.tensor([tokens])).logits[0]
    slot = backend.allocate(45)
    got = torch.cat([prefill(backend, slot, tokens[a:b]) for a, b in ((0, 1), (1, 18), (18, 19), (19, 45))])
    assert got.dtype == torch.float32
    assert (got - expected).abs().max() < 1e-4


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_taps_are_transformers_hidden_states(tiny: Path, implementation: Implementation) -> None:
    reference = AutoModelForCausalLM.from_pretrained(tiny, attn_implementation="eager").eval()
    backend = load_on_cpu(tiny, implementation=implementation)
    slot = backend.allocate(16)
    tokens = np.arange(1, 12)
    with torch.inference_mode():
        states = reference(torch.from_numpy(tokens)[None], output_hidden_states=True).hidden_states
    block = RowBlock(slot, tokens, np.arange(11), np.arange(-1, 10), np.array([10, 3]))
    result = backend.forward([block], taps=("layer:0", "layer:1", "final_norm"))
    for tap, expected in (("layer:0", states[1]), ("layer:1", states[2]), ("final_norm", states[3])):
        assert (result.hidden[tap][0] - expected[0]).abs().max() < 1e-4
    everything = backend.forward([RowBlock(backend.allocate(16), tokens, np.arange(11), np.arange(-1, 10))])
    assert torch.allclose(result.logits[0], everything.logits[0][[10, 3]], atol=1e-5)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_bf16_weights_are_the_rounded_ones(tiny: Path, implementation: Implementation) -> None:
    rounded = AutoModelForCausalLM.from_pretrained(tiny, attn_implementation="eager", dtype=torch.bfloat16).eval()
    backend = load_on_cpu(tiny, dtype="bfloat16", implementation=implementation)
    tokens = list(range(20))
    with torch.inference_mode():
        theirs = rounded(torch.tensor([tokens])).logits[0].float()
        exact = rounded.float()(torch.tensor([tokens])).logits[0]
    got = prefill(backend, backend.allocate(20), tokens)
    if implementation == "cpu-llvm":
        assert (got - exact).abs().max() < 1e-4
    elif implementation == "cpu-torch":
        assert (got - theirs).abs().max() < 0.25
    else:
        # It rounds at fewer places than Transformers: not the same, but no further from the truth.
        assert (got - exact).abs().mean() < 1.1 * (theirs - exact).abs().mean()
