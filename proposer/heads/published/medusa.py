"""Medusa's layouts: heads of residual blocks with vocabulary rows of their own. Both are renamings of our `medusa`.

FasterDecoding   i.j.linear.weight, i.j.linear.bias (block j of head i), i.L.weight (its vocabulary rows);
                 medusa_num_heads, medusa_num_layers. The published class repeats one block object L times, so that all
                 blocks of a head are equal there; they are read as they are stored.
vLLM             blocks.i.layers.j.weight (.bias with medusa_fc_bias), lm_heads.i.weight, token_map with
                 truncated_vocab_size; num_heads, num_hidden_layers; original_lm_head: the target's rows serve all.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from contracts.errors import FailedPrecondition
from proposer.heads.families import Frozen
from proposer.heads.published.eagle import FINAL
from proposer.heads.published.found import Config, Found
from proposer.heads.published.tensors import FIELD, Tensors
from proposer.heads.vocabulary import DraftVocabulary


def read_medusa(config: Config, tensors: Tensors, target: Frozen, eos_ids: tuple[int, ...]) -> Found:
    """FasterDecoding's. Raises InvalidArgument for tensors that are not those of the configuration."""
    heads, layers = config.count("medusa_num_heads"), config.count("medusa_num_layers")
    vocab, hidden = target.head.shape
    named: dict[str, Tensor] = {}
    for i in range(heads):
        named[f"heads.{i}.weight"] = torch.stack(
            [tensors.take(f"{i}.{j}.linear.weight", hidden, hidden) for j in range(layers)]
        )
        named[f"heads.{i}.bias"] = torch.stack([tensors.take(f"{i}.{j}.linear.bias", hidden) for j in range(layers)])
    named["projection"] = torch.stack([tensors.take(f"{i}.{layers}.weight", vocab, hidden) for i in range(heads)])
    vocabulary = DraftVocabulary(np.arange(vocab), target_size=vocab, eos_ids=eos_ids)
    base = str(config.raw.get("base_model_name_or_path", ""))
    return _found("medusa", named, vocabulary, heads, layers, "own", base)


def read_vllm_medusa(config: Config, tensors: Tensors, target: Frozen, eos_ids: tuple[int, ...]) -> Found:
    """vLLM's. Raises as `read_medusa`, and FailedPrecondition for original_lm_head rows that are not the target's."""
    config.only(logit_scale=1.0)
    heads, layers = config.count("num_heads"), config.count("num_hidden_layers")
    vocab, hidden = target.head.shape
    prefix = "medusa_heads." if tensors.starts("medusa_heads.") else ""
    kept = config.count("truncated_vocab_size", vocab)
    ids = torch.arange(vocab)
    if kept < vocab:
        ids = tensors.take("token_map", kept).long()
    order = ids.argsort()
    vocabulary = DraftVocabulary(ids[order].numpy(), target_size=vocab, eos_ids=eos_ids)
    named: dict[str, Tensor] = {}
    for i in range(heads):
        blocks = [f"{prefix}blocks.{i}.layers.{j}" for j in range(layers)]
        weights = torch.stack([tensors.take(f"{name}.weight", hidden, hidden) for name in blocks])
        named[f"heads.{i}.weight"] = weights
        # Without medusa_fc_bias the published block adds none, which is adding zeros.
        named[f"heads.{i}.bias"] = (
            torch.stack([tensors.take(f"{name}.bias", hidden) for name in blocks])
            if config.flag("medusa_fc_bias")
            else weights.new_zeros(layers, hidden)
        )
    if config.flag("original_lm_head"):
        if f"{prefix}lm_heads.0.weight" in tensors:
            rows = tensors.take(f"{prefix}lm_heads.0.weight", vocab, hidden)
            if not torch.equal(rows, target.head.to(rows.dtype)):
                raise FailedPrecondition(f"{FIELD}.lm_heads.0.weight", "is not the target's vocabulary projection")
        return _found("vllm-medusa", named, vocabulary, heads, layers, "shared", "")
    rows_of = [_rows(tensors, f"{prefix}lm_heads.{i}.weight", ids, vocab, hidden)[order] for i in range(heads)]
    named["projection"] = torch.stack(rows_of)
    return _found("vllm-medusa", named, vocabulary, heads, layers, "own", "")


def _rows(tensors: Tensors, name: str, ids: Tensor, vocab: int, hidden: int) -> Tensor:
    """The rows of `ids`: stored for them alone, or among those of the whole vocabulary."""
    if tensors.rows(name) == vocab:
        return tensors.take(name, vocab, hidden)[ids]
    return tensors.take(name, len(ids), hidden)


def _found(
    layout: str, named: dict[str, Tensor], vocabulary: DraftVocabulary, heads: int, layers: int, kind: str, base: str
) -> Found:
    return Found(
        layout=layout,
        family="medusa",
        offsets=tuple(range(2, heads + 2)),
        depth=heads,
        projection=kind,
        taps=(FINAL,),
        shape={"blocks": layers},
        tensors=named,
        vocabulary=vocabulary,
        base=base,
    )
