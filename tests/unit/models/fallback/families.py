"""Tiny configurations of families that have no decoder of ours, and one path at a time by Transformers itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

ALTERNATING = ["sliding_attention", "full_attention"] * 2
GROUPED = {"num_key_value_heads": 2, "intermediate_size": 64}

# What each brings that the decoders of ours do not know.
FAMILIES: dict[str, dict[str, Any]] = {
    # Learned positions.
    "gpt2": {},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    # Parallel blocks, partial rotation.
    "gpt_neox": {"intermediate_size": 64},
    "stablelm": {**GROUPED, "use_parallel_residual": True},
    "falcon": {},
    "cohere2": {**GROUPED, "head_dim": 8, "sliding_window": 7, "layer_types": ALTERNATING},
    # Alternating windows, soft-capping, norms around each part.
    "gemma2": {**GROUPED, "head_dim": 8, "sliding_window": 7, "layer_types": ALTERNATING, "query_pre_attn_scalar": 8},
    "gemma3_text": {**GROUPED, "head_dim": 8, "sliding_window": 7, "layer_types": ALTERNATING},
    # Layers that read the keys and values of earlier ones, several streams.
    "gemma3n_text": {
        **GROUPED,
        "head_dim": 8,
        "sliding_window": 7,
        "layer_types": ALTERNATING,
        "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": 97,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 4,
        "altup_num_inputs": 2,
        "activation_sparsity_pattern": [0.0] * 4,
    },
    # Experts; a window in every layer.
    "mixtral": {**GROUPED, "num_local_experts": 4, "sliding_window": 7},
    # Attention sinks.
    "gpt_oss": {
        **GROUPED,
        "head_dim": 8,
        "sliding_window": 7,
        "layer_types": ALTERNATING,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    # Fused projections, norms after each part.
    "phi3": {**GROUPED, "sliding_window": 7},
    "olmo2": GROUPED,
    # Compressed keys and values of two widths.
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "intermediate_size": 64,
        "moe_intermediate_size": 16,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
    },
}


class Reference:
    """Transformers' own model with its own eager attention, without a cache."""

    def __init__(self, directory: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager").eval()

    @torch.inference_mode()
    def logits(self, tokens: list[int]) -> Tensor:
        """float32 [len(tokens), vocab_size]."""
        return self._model(torch.tensor([tokens]), use_cache=False).logits[0].float()

    @torch.inference_mode()
    def hidden_states(self, tokens: list[int]) -> tuple[Tensor, ...]:
        """Embeddings, every layer but the last, and what the head reads, each [len(tokens), hidden_size]."""
        states = self._model(torch.tensor([tokens]), use_cache=False, output_hidden_states=True).hidden_states
        return tuple(state[0] for state in states)
