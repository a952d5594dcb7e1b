"""Write an ordinary checkpoint directory: changed or fewer layers of a model, with its configuration and tokenizer.

What comes out is read by `models.weights` and by Transformers like any other checkpoint, so a distilled draft and a
Medusa-2 backbone need no loader of their own.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from contracts.errors import InvalidArgument
from models.config import DecoderConfig
from models.weights import DecoderWeights, LayerWeights

WEIGHTS = "model.safetensors"
# Weights and what describes weights; everything else of a checkpoint goes along as it is.
_NOT_COPIED = (".safetensors", ".safetensors.index.json", ".digests.json")


def write_checkpoint(base: Path, out: Path, config: DecoderConfig, weights: DecoderWeights) -> None:
    """`weights` as a checkpoint in `out`, with the files of the checkpoint `base`, whose `config` they have but for the
    number of layers. The configuration goes last, so that half a checkpoint has none.

    Raises InvalidArgument where `out` is `base`.
    """
    if out.resolve() == base.resolve():
        raise InvalidArgument("out", f"{out} is the checkpoint that it is made from")
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").unlink(missing_ok=True)
    for path in base.iterdir():
        if path.is_file() and path.name != "config.json" and not path.name.endswith(_NOT_COPIED):
            shutil.copyfile(path, out / path.name)
    save_file(_named(config, weights), out / WEIGHTS, metadata={"format": "pt"})
    raw = json.loads((base / "config.json").read_text(encoding="utf-8"))
    raw["num_hidden_layers"] = len(weights.layers)
    if "layer_types" in raw:
        raw["layer_types"] = raw["layer_types"][: len(weights.layers)]
    raw["torch_dtype"] = raw["dtype"] = str(weights.embedding.dtype).removeprefix("torch.")
    unfinished = out / "config.json.unfinished"
    unfinished.write_text(json.dumps(raw, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(unfinished, out / "config.json")


def _named(config: DecoderConfig, weights: DecoderWeights) -> dict[str, Tensor]:
    tensors = {"model.embed_tokens.weight": weights.embedding, "model.norm.weight": weights.final_norm}
    if not config.tied_head:
        tensors["lm_head.weight"] = weights.head
    for index, layer in enumerate(weights.layers):
        tensors |= {f"model.layers.{index}.{name}": tensor for name, tensor in _layer(config, layer).items()}
    return {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}


def _layer(config: DecoderConfig, layer: LayerWeights) -> dict[str, Tensor]:
    kv_width = config.num_kv_heads * config.head_dim
    widths = [config.num_heads * config.head_dim, kv_width, kv_width]
    tensors = {
        "input_layernorm.weight": layer.attention_norm,
        "self_attn.o_proj.weight": layer.out,
        "post_attention_layernorm.weight": layer.mlp_norm,
        "mlp.down_proj.weight": layer.down,
    }
    tensors |= dict(zip(("mlp.gate_proj.weight", "mlp.up_proj.weight"), layer.gate_up.chunk(2), strict=True))
    for part, rows in zip("qkv", layer.qkv.split(widths), strict=True):
        tensors[f"self_attn.{part}_proj.weight"] = rows
    if layer.qkv_bias is not None:
        for part, rows in zip("qkv", layer.qkv_bias.split(widths), strict=True):
            tensors[f"self_attn.{part}_proj.bias"] = rows
    optional = {
        "self_attn.o_proj.bias": layer.out_bias,
        "self_attn.q_norm.weight": layer.q_norm,
        "self_attn.k_norm.weight": layer.k_norm,
    }
    return tensors | {name: tensor for name, tensor in optional.items() if isinstance(tensor, torch.Tensor)}
