"""Imported heads compute what their authors published, after prefixes and along drafted paths: recomputations say so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from models.checkpoint import tokenizer_digest
from models.config import read_config
from models.weights import read_weights
from proposer.heads.families import Frozen, LoadedHead, load_head
from proposer.heads.published.importing import import_head
from tests.contract.tiny_service import EOS, tiny_service_checkpoint
from tests.helpers import published_heads as published
from tests.helpers.published_heads import DRAFT_IDS, HIDDEN, VOCAB
from tests.oracle.heads.published_forward import eagle3_outputs, eagle_outputs, medusa_logits, norm

TAPS = ("layer:0", "layer:1", "final_norm")
PREFIX = np.random.default_rng(0).integers(2, VOCAB, size=150).astype(np.int64)
# A drafted tree: two children of the anchor, a grandchild under each, one below that.
TOKENS, PARENTS, DEPTHS = [5, 77, 100, 6, 40], [-1, -1, 0, 1, 3], [1, 1, 2, 2, 3]


class States:
    """Fixed random rows per tap."""

    base = 0

    def rows(self, start: int, stop: int) -> Mapping[str, Tensor]:
        return {tap: self.whole(tap)[start:stop] for tap in ("final_norm", "layer:0", "layer:1", "layer:2")}

    @staticmethod
    def whole(tap: str) -> Tensor:
        seed = ("final_norm", "layer:0", "layer:1", "layer:2").index(tap)
        return torch.randn(200, HIDDEN, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_service_checkpoint(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def rows(target: Path) -> tuple[Tensor, Tensor]:
    """The target's embedding and vocabulary rows."""
    weights = read_weights(target, read_config(target), torch.float32)
    return weights.embedding, weights.head


def imported(source: Path, target: Path, out: Path, taps: tuple[str, ...] = ()) -> LoadedHead:
    import_head(source, out, target, target_name="tiny", eos_ids=(EOS,), taps=taps)
    config = read_config(target)
    # In the target's own precision; the service takes its rows in bfloat16, as it does for every head.
    frozen = Frozen.of(config, read_weights(target, config, torch.float32))
    return load_head(out, target, tokenizer_digest=tokenizer_digest(target), eos_ids=(EOS,), frozen=frozen)


def path_of(node: int) -> list[int]:
    return [*(path_of(PARENTS[node]) if PARENTS[node] >= 0 else []), node]


Forward = Callable[[Tensor, Tensor], Tensor]


def check_recurrent(loaded: LoadedHead, forward: Forward, logits: Callable[[Tensor], Tensor], features: Tensor) -> None:
    """Every row of a round, drafted twice over (a rejected draft leaves nothing), against whole recomputations."""
    session = loaded.head.open(220)
    for prefix in (PREFIX[:9], PREFIX[:140], PREFIX[:133]):
        tokens = torch.from_numpy(prefix[1:].copy())
        real = features[: len(tokens)]
        outputs = forward(real, tokens)
        for _ in range(2):
            got = session.follow(prefix, States())
            torch.testing.assert_close(got, logits(outputs[-1]), rtol=2e-4, atol=2e-4)
            staged = torch.cat(
                [
                    session.stage(TOKENS[:2], PARENTS[:2], DEPTHS[:2]),
                    session.stage(TOKENS[2:4], PARENTS[2:4], DEPTHS[2:4]),
                    session.stage(TOKENS[4:], PARENTS[4:], DEPTHS[4:]),
                ]
            )
            session.settle()
        for node in range(len(TOKENS)):
            drafted, following = real, tokens
            for step in path_of(node):
                drafted = torch.cat([drafted, forward(drafted, following)[-1:]])
                following = torch.cat([following, torch.tensor([TOKENS[step]])])
            expected = logits(forward(drafted, following)[-1])
            torch.testing.assert_close(staged[node], expected, rtol=2e-4, atol=2e-4)
    session.release()


def test_medusa_is_the_published_head(target: Path, tmp_path: Path) -> None:
    source = published.medusa(tmp_path / "published")
    weights, _ = published.read(source)
    loaded = imported(source, target, tmp_path / "out")
    session, row = loaded.head.open(64), States.whole("final_norm")[len(PREFIX) - 2]
    assert loaded.head.max_depth == 3
    torch.testing.assert_close(
        session.follow(PREFIX, States()), medusa_logits(weights, row, 0, 2), rtol=1e-4, atol=1e-4
    )
    staged = session.stage([7, 8], [-1, 0], [1, 2])
    for depth in (1, 2):
        torch.testing.assert_close(staged[depth - 1], medusa_logits(weights, row, depth, 2), rtol=1e-4, atol=1e-4)


def test_vllms_medusa_is_its_head_over_the_mapped_tokens(target: Path, tmp_path: Path) -> None:
    source = published.vllm_medusa(tmp_path / "published")
    weights, _ = published.read(source)
    loaded = imported(source, target, tmp_path / "out")
    row = States.whole("final_norm")[len(PREFIX) - 2]
    x = row + torch.nn.functional.silu(weights["blocks.0.layers.0.weight"] @ row)
    by_token = dict(zip(weights["token_map"].tolist(), (weights["lm_heads.0.weight"] @ x).tolist(), strict=True))
    got = loaded.head.open(64).follow(PREFIX, States())
    assert loaded.head.vocabulary.ids.tolist() == sorted(by_token)
    torch.testing.assert_close(got, torch.tensor([by_token[token] for token in sorted(by_token)]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("bias", "qkv_bias"), [(True, False), (False, True)])
def test_eagle_is_the_published_layer(
    target: Path, rows: tuple[Tensor, Tensor], tmp_path: Path, bias: bool, qkv_bias: bool
) -> None:
    embedding, head = rows
    source = published.eagle(tmp_path / "published", embedding, bias=bias, qkv_bias=qkv_bias)
    weights, _ = published.read(source)
    loaded = imported(source, target, tmp_path / "out")
    assert "embedding" not in dict(loaded.head.network.named_parameters())
    check_recurrent(
        loaded,
        lambda features, tokens: eagle_outputs(weights, embedding, features, tokens),
        lambda output: head @ output,
        States.whole("final_norm"),
    )


def test_eagle3_is_the_published_layer(target: Path, rows: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    embedding, _ = rows
    source = published.eagle3(tmp_path / "published")
    weights, _ = published.read(source)
    loaded = imported(source, target, tmp_path / "out", TAPS)
    assert loaded.head.vocabulary.ids.tolist() == DRAFT_IDS
    check_recurrent(
        loaded,
        lambda features, tokens: eagle3_outputs(weights, embedding, features, tokens),
        lambda output: weights["lm_head.weight"] @ norm(output, weights["norm.weight"]),
        torch.cat([States.whole(tap) for tap in TAPS], dim=-1) @ weights["fc.weight"].T,
    )


def test_speculators_eagle_is_eagle_without_a_bias(target: Path, rows: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    embedding, head = rows
    source = published.speculators(tmp_path / "published", "eagle")
    weights, _ = published.read(source)
    check_recurrent(
        imported(source, target, tmp_path / "out"),
        lambda features, tokens: eagle_outputs(weights, embedding, features, tokens),
        lambda output: head @ output,
        States.whole("final_norm"),
    )


@pytest.mark.parametrize("norm_before_residual", [False, True])
def test_speculators_eagle3_keeps_its_own_embedding_and_its_residual(
    tmp_path: Path, norm_before_residual: bool
) -> None:
    target = tiny_service_checkpoint(tmp_path / "target", layers=3)
    source = published.speculators(tmp_path / "published", "eagle3", norm_before_residual=norm_before_residual)
    weights, _ = published.read(source)
    loaded = imported(source, target, tmp_path / "out")
    # Published ids name the layers that read the rows.
    taps = ("layer:0", "layer:1", "layer:2")
    assert loaded.head.taps == taps
    check_recurrent(
        loaded,
        lambda features, tokens: eagle3_outputs(
            weights, weights["embed_tokens.weight"], features, tokens, norm_before_residual=norm_before_residual
        ),
        lambda output: weights["lm_head.weight"] @ norm(output, weights["norm.weight"]),
        torch.cat([States.whole(tap) for tap in taps], dim=-1) @ weights["fc.weight"].T,
    )
