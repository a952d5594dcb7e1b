"""Tiny random checkpoints with fixed seeds, written to a directory in the layout real ones have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging


def tiny_checkpoint(
    tmp: Path,
    family: str = "llama",
    *,
    vocab_size: int = 97,
    hidden: int = 32,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    seed: int = 0,
    name: str | None = None,
    logit_scale: float = 1.0,
    **options: Any,
) -> Path:
    """Write a random checkpoint without tokenizer and return its directory, `tmp/name`.

    `logit_scale` multiplies the head (sharper laws); it unties it. `options` go to the Transformers configuration
    (`rope_parameters`, `sliding_window`, `tie_word_embeddings`, ...). The same arguments give the same weights.
    """
    settings: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden + 8,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim or hidden // heads,
        "max_position_embeddings": 512,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
        # As wide as a trained model's, so that laws are peaked and attention is not uniform.
        "initializer_range": 0.3,
    }
    if family == "mistral":
        settings["sliding_window"] = None
    settings.update(options)
    directory = tmp / (name or f"{family}-{vocab_size}-{hidden}x{layers}-{seed}")
    return _write(directory, family, settings, seed, logit_scale)


def tiny_family(tmp: Path, family: str, *, seed: int = 0, **options: Any) -> Path:
    """Write a random checkpoint of any family of Transformers, `options` beside the few keys that all know; no tokenizer."""
    settings: dict[str, Any] = {
        "vocab_size": 97,
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "max_position_embeddings": 256,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "initializer_range": 0.3,
    }
    return _write(tmp / f"{family}-{seed}", family, settings | options, seed, 1.0)


def _write(directory: Path, family: str, settings: dict[str, Any], seed: int, logit_scale: float) -> Path:
    config = AutoConfig.for_model(family, **settings)
    transformers_logging.disable_progress_bar()
    generator_state = torch.get_rng_state()
    torch.manual_seed(seed)
    try:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if parameter.dim() == 1:
                    around = 0.0 if parameter_name.endswith("bias") else 1.0
                    parameter.copy_(around + 0.2 * torch.randn_like(parameter))
            if logit_scale != 1.0:
                model.lm_head.weight.mul_(logit_scale)
    finally:
        torch.set_rng_state(generator_state)
    model.save_pretrained(directory)
    return directory


def edit_config(directory: Path, **changes: Any) -> None:
    """Overwrite keys of a checkpoint's config.json; a value of None removes the key."""
    path = directory / "config.json"
    raw = json.loads(path.read_text(encoding="utf-8"))
    for key, value in changes.items():
        if value is None:
            raw.pop(key, None)
        else:
            raw[key] = value
    path.write_text(json.dumps(raw), encoding="utf-8")
