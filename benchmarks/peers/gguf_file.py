"""A checkpoint of the Llama family as a GGUF file, so that peers which read GGUF run the weights that we run.

Matrices are rounded to bf16 as our own backend rounds them, norms stay fp32. A reader that knows no bf16 gets the rounded
values as fp16, and only if none of them changes by that. Rows of the query and key projections go to the
order of interleaved rotary pairs, which the `llama` architecture of GGUF means (two halves in the checkpoint).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal

import gguf
import torch
from safetensors import safe_open

from contracts.errors import InvalidArgument
from models.checkpoint import digest

Store = Literal["bf16", "f16"]


def gguf_file(checkpoint: Path, folder: Path, store: Store) -> Path:
    """The file in `folder` with matrices stored as `store`, written on the first call.

    Raises InvalidArgument where the checkpoint is of another family, biased, rotates otherwise than plainly, or has
    weights whose bf16 values fp16 cannot hold.
    """
    path = folder / f"{digest(checkpoint)[:16]}-{store}.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        _write(checkpoint, partial, store)
        os.replace(partial, path)
    return path


def interleaved(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """[heads * d, in] with each head's rotary halves apart -> the same rows with pairs (i, i + d / 2) side by side."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def _write(checkpoint: Path, path: Path, store: Store) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    if config["model_type"] != "llama" or config.get("attention_bias") or config.get("mlp_bias"):
        raise InvalidArgument(
            "checkpoint", f"model type {config['model_type']!r}: only llama without biases is written"
        )
    rope = config.get("rope_parameters") or {"rope_type": "default", "rope_theta": config.get("rope_theta", 10000.0)}
    if rope["rope_type"] != "default":
        raise InvalidArgument("checkpoint", f"rope type {rope['rope_type']!r}: only default is written")
    heads, kv_heads, layers = (
        config[f"num_{name}"] for name in ("attention_heads", "key_value_heads", "hidden_layers")
    )
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(checkpoint.name)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(layers)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16 if store == "bf16" else gguf.LlamaFileType.MOSTLY_F16)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _add_tokenizer(writer, checkpoint, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, layers)
    with safe_open(checkpoint / "model.safetensors", "pt") as file:
        for name in sorted(file.keys()):
            tensor = file.get_tensor(name)
            if name.endswith("q_proj.weight"):
                tensor = interleaved(tensor, heads)
            elif name.endswith("k_proj.weight"):
                tensor = interleaved(tensor, kv_heads)
            known = names.get_name(name, try_suffixes=(".weight",))
            if known is None:
                raise InvalidArgument("checkpoint", f"tensor {name!r} has no name in GGUF's llama")
            if tensor.dim() == 1:
                writer.add_tensor(known, tensor.float().numpy())
            else:
                _add_matrix(writer, known, tensor.to(torch.bfloat16).contiguous(), store)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_matrix(writer: gguf.GGUFWriter, name: str, matrix: torch.Tensor, store: Store) -> None:
    if store == "bf16":
        writer.add_tensor(name, matrix.view(torch.uint8).numpy(), raw_dtype=gguf.GGMLQuantizationType.BF16)
        return
    half = matrix.to(torch.float16)
    if not torch.equal(half.float(), matrix.float()):
        raise InvalidArgument("checkpoint", f"fp16 does not hold the bf16 values of {name}")
    writer.add_tensor(name, half.numpy())


def _add_tokenizer(writer: gguf.GGUFWriter, checkpoint: Path, config: dict[str, Any]) -> None:
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
    vocabulary, added = tokenizer["model"]["vocab"], tokenizer["added_tokens"]
    size = int(config["vocab_size"])
    tokens = [f"[PAD{index}]" for index in range(size)]
    types = [int(gguf.TokenType.UNUSED)] * size
    for text, index in vocabulary.items():
        tokens[index], types[index] = text, int(gguf.TokenType.NORMAL)
    for token in added:
        kind = gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED
        tokens[token["id"]], types[token["id"]] = token["content"], int(kind)
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    for name, add in (
        ("bos_token_id", writer.add_bos_token_id),
        ("eos_token_id", writer.add_eos_token_id),
        ("pad_token_id", writer.add_pad_token_id),
    ):
        if isinstance(config.get(name), int):
            add(config[name])
    writer.add_add_bos_token(False)
