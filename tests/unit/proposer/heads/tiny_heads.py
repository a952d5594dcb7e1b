"""Tiny untrained heads over random hidden rows, and the rows themselves as the verifier would export them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from contracts.errors import Unavailable
from models.config import DecoderConfig, parse_config
from proposer.heads.families import Frozen, head_of, network_of, tensor_shapes
from proposer.heads.head import DraftHead
from proposer.heads.package import HeadManifest, HeadPackage
from proposer.heads.vocabulary import DraftVocabulary

VOCAB, HIDDEN, EOS = 50, 32, 1
CONFIG: DecoderConfig = parse_config(
    {
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
    }
)
VOCABULARY = DraftVocabulary(
    np.array([0, 1, 3, 4, 7, 9, 11, 20, 21, 30, 33, 41, 49]), target_size=VOCAB, eos_ids=(EOS,)
)
TAPS = {"eagle3": ("layer:0", "layer:1", "final_norm")}
SHAPES: dict[str, dict[str, int]] = {
    "medusa": {"blocks": 1},
    "medusa2": {"blocks": 1},
    "hydra": {"blocks": 1, "prefix": 0},
    "hydra++": {"blocks": 2, "prefix": 1, "inner": 40},
    "clover": {"prefix": 1, "inner": 40},
    "eagle": {"inner": 40},
    "eagle3": {"inner": 40},
}
FAMILIES = ("medusa", "medusa-own", "hydra", "hydra++", "clover", "eagle", "eagle3")


def frozen() -> Frozen:
    generator = torch.Generator().manual_seed(5)
    rows = torch.randn(VOCAB, HIDDEN, generator=generator)
    return Frozen(CONFIG, rows, rows)


def manifest_of(family: str, **changes: object) -> HeadManifest:
    name = family.removesuffix("-own")
    recurrent = name in ("eagle", "eagle3")
    manifest = HeadManifest(
        family=name,
        offsets=(2,) if recurrent else (2, 3, 4),
        depth=0 if recurrent else 3,
        projection="own" if family.endswith("-own") else "shared",
        taps=TAPS.get(name, ("final_norm",)),
        shape=SHAPES[name],
        target="tiny",
        target_digest="t" * 64,
        tokenizer_digest="k" * 64,
        vocabulary_size=len(VOCABULARY),
        target_vocabulary_size=VOCAB,
        vocabulary_sha256="",
        eos_ids=(EOS,),
    )
    return replace(manifest, **changes)  # type: ignore[arg-type]


def network(family: str, seed: int = 0) -> nn.Module:
    """Random weights, as loud as a trained head's."""
    made = network_of(manifest_of(family), frozen(), VOCABULARY)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            scale = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.3
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale + (parameter.dim() == 1))
    return made


def head(family: str, seed: int = 0, *, own_tokens: bool = False) -> tuple[nn.Module, DraftHead]:
    """The network and its drafting side in float32. own_tokens: it drafts tokens of its sessions' own too."""
    made = network(family, seed)
    tensors = {name: value.detach().clone() for name, value in made.named_parameters()}
    assert set(tensors) == set(tensor_shapes(made))
    loaded = HeadPackage(manifest_of(family), VOCABULARY, tensors, {})
    drafting = network_of(manifest_of(family), frozen(), VOCABULARY)
    rows = frozen().head if own_tokens else None
    return made, head_of(loaded, drafting, kv_budget_tokens=2048, dtype=torch.float32, target_head=rows)


class Rows:
    """Hidden rows that depend on the tokens up to their own, as a target's do. asked: the ranges asked for. base: the first
    row that there is."""

    def __init__(self, tokens: np.ndarray, base: int = 0) -> None:
        self.tokens = np.asarray(tokens, np.int64)
        self.base = base
        self.asked: list[tuple[int, int]] = []
        self.gone = False

    def rows(self, start: int, stop: int) -> Mapping[str, Tensor]:
        if self.gone:
            raise Unavailable("hidden", "the verifier is draining")
        assert self.base <= start < stop <= len(self.tokens) - 1
        self.asked.append((start, stop))
        return {tap: value[start:stop] for tap, value in hidden_rows(self.tokens[:-1]).items()}


def hidden_rows(tokens: np.ndarray) -> dict[str, Tensor]:
    """float32 [N, H] per tap: a running mix of fixed random vectors of the tokens."""
    out = {}
    for index, tap in enumerate(("final_norm", "layer:0", "layer:1")):
        table = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(100 + index))
        state, rows = torch.zeros(HIDDEN), []
        for token in tokens.tolist():
            state = 0.6 * state + table[token]
            rows.append(state)
        out[tap] = torch.stack(rows)
    return out


def prefix_of(length: int, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(2, VOCAB, size=length).astype(np.int64)
