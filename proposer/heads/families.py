"""From a manifest to a network and back: which sizes a family has and what its tensors are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from contracts.errors import FailedPrecondition, InvalidArgument
from models.checkpoint import digest
from models.config import DecoderConfig, parse_config, read_config
from models.weights import DecoderWeights, read_weights
from proposer.heads import package
from proposer.heads.adapter import adapter_shapes
from proposer.heads.clover import CloverHead, CloverNetwork
from proposer.heads.eagle import EagleNetwork, EagleShape
from proposer.heads.eagle_draft import EagleHead
from proposer.heads.head import DraftHead
from proposer.heads.hydra import HydraHead, HydraNetwork
from proposer.heads.manifest_checks import check_layers
from proposer.heads.medusa import MedusaHead, MedusaNetwork
from proposer.heads.package import HeadManifest, HeadPackage
from proposer.heads.prefix import PrefixNetwork, PrefixRows
from proposer.heads.published.eagle import FAMILIES as PUBLISHED
from proposer.heads.published.eagle import PublishedEagle, PublishedEagleHead, PublishedShape
from proposer.heads.vocabulary import DraftVocabulary


@dataclass(frozen=True)
class Frozen:
    """What a head takes from its target: configuration, embedding and vocabulary rows [V, H], in the target's dtype."""

    config: DecoderConfig
    embedding: Tensor
    head: Tensor

    @classmethod
    def of(cls, config: DecoderConfig, weights: DecoderWeights) -> Frozen:
        return cls(config, weights.embedding, weights.head)

    def rows(self, vocabulary: DraftVocabulary) -> Tensor:
        """Vocabulary rows of the draft vocabulary, float32 [V', H]."""
        return self.head[torch.from_numpy(vocabulary.ids)].float()


def network_of(manifest: HeadManifest, frozen: Frozen, vocabulary: DraftVocabulary) -> nn.Module:
    """An untrained network of the manifest's family and sizes. Raises InvalidArgument for a tap that the target lacks."""
    check_layers(manifest.taps, frozen.config.num_layers)
    shape = manifest.shape
    rows, hidden = frozen.rows(vocabulary), frozen.config.hidden_size
    if manifest.family in PUBLISHED:
        return PublishedEagle(_published_shape(manifest, hidden), frozen.embedding, rows)
    layer = replace(frozen.config, intermediate_size=shape.get("inner", frozen.config.intermediate_size))
    if manifest.family in ("eagle", "eagle3"):
        return EagleNetwork(EagleShape(manifest.taps, layer), frozen.embedding, rows)
    if manifest.family in ("medusa", "medusa2"):
        own = manifest.projection == "own"
        return MedusaNetwork(hidden, manifest.depth, shape["blocks"], rows, own_projection=own)
    prefix = PrefixNetwork(layer) if shape["prefix"] else None
    if manifest.family == "clover":
        heads = frozen.config.num_heads
        return CloverNetwork(hidden, heads, manifest.depth, frozen.embedding, rows, prefix=prefix)
    return HydraNetwork(hidden, manifest.depth, shape["blocks"], frozen.embedding, rows, prefix=prefix)


def _published_shape(manifest: HeadManifest, target_hidden: int) -> PublishedShape:
    return PublishedShape(
        config=parse_config(manifest.decoder),
        taps=manifest.taps,
        target_hidden=target_hidden,
        joins=manifest.family == "eagle-published",
        **{name: bool(value) for name, value in manifest.shape.items()},
    )


def tensor_shapes(network: nn.Module) -> Mapping[str, tuple[int, ...]]:
    """What a package of this network holds, an adapter aside."""
    return {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}


def package_shapes(manifest: HeadManifest, frozen: Frozen) -> Mapping[str, tuple[int, ...]]:
    """All that a package with this manifest holds for this target, a Medusa-2 package's adapter included."""
    # Shapes do not depend on which ids the draft vocabulary has, only on how many.
    placeholder = DraftVocabulary(np.arange(manifest.vocabulary_size), target_size=frozen.config.vocab_size, eos_ids=())
    shapes = dict(tensor_shapes(network_of(manifest, frozen, placeholder)))
    if manifest.family == "medusa2":
        shapes |= adapter_shapes(frozen.config, _rank(manifest))
    return shapes


def _rank(manifest: HeadManifest) -> int:
    """Of a Medusa-2 adapter: packages made before `shape` had it name it in `training`."""
    rank = manifest.shape.get("rank", manifest.training.get("rank"))
    if not isinstance(rank, int) or rank < 1:
        raise InvalidArgument("head.shape", f"a medusa2 head needs rank, and has {rank!r}")
    return rank


def head_of(
    loaded: HeadPackage,
    network: nn.Module,
    *,
    kv_budget_tokens: int = 16384,
    threads: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
    target_head: Tensor | None = None,
) -> DraftHead:
    """The drafting side of a network whose parameters are now the package's. target_head: as `EagleHead` has it."""
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(loaded.tensors[name])
    digest_of, vocabulary = loaded.manifest.weights_sha256, loaded.vocabulary
    if isinstance(network, EagleNetwork):
        return EagleHead(
            network,
            vocabulary,
            dtype=dtype,
            kv_budget_tokens=kv_budget_tokens,
            threads=threads,
            target_head=target_head,
        )
    if isinstance(network, PublishedEagle):
        return PublishedEagleHead(network, vocabulary, kv_budget_tokens=kv_budget_tokens)
    if isinstance(network, MedusaNetwork):
        return MedusaHead(network, vocabulary)
    assert isinstance(network, HydraNetwork | CloverNetwork)
    rows = None
    if network.prefix is not None:
        rows = PrefixRows(network.prefix, digest=digest_of, kv_budget_tokens=kv_budget_tokens)
    return (
        HydraHead(network, vocabulary, rows)
        if isinstance(network, HydraNetwork)
        else CloverHead(network, vocabulary, rows)
    )


@dataclass(frozen=True)
class LoadedHead:
    """A head ready to draft, with the manifest it was loaded under."""

    head: DraftHead
    manifest: HeadManifest


def load_head(
    directory: Path,
    checkpoint: Path,
    *,
    tokenizer_digest: str,
    eos_ids: Sequence[int],
    frozen: Frozen | None = None,
    kv_budget_tokens: int = 16384,
    threads: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> LoadedHead:
    """The head package in `directory` for the target in `checkpoint`; errors as `package.load`, and FailedPrecondition for a
    Medusa-2 package, whose backbone is not this target.

    eos_ids: the target's. frozen: its rows where they are at hand; read from the checkpoint in bfloat16 otherwise.
    dtype: of EAGLE's layer and vocabulary rows while drafting.
    """
    manifest = package.read_manifest(directory)
    if frozen is None:
        config = read_config(checkpoint)
        frozen = Frozen.of(config, read_weights(checkpoint, config, torch.bfloat16))
    if manifest.target_vocabulary_size != frozen.config.vocab_size:
        raise InvalidArgument(
            "head.target_vocabulary_size",
            f"{manifest.target_vocabulary_size}, the target has {frozen.config.vocab_size}",
        )
    loaded = package.load(
        directory,
        package_shapes(manifest, frozen),
        target_digest=digest(checkpoint),
        tokenizer_digest=tokenizer_digest,
        eos_ids=eos_ids,
    )
    if loaded.adapter:
        raise FailedPrecondition(
            "head.adapter",
            f"{directory.name} reads a changed backbone: make that target and its heads by `draftproof train backbone`",
        )
    network = network_of(manifest, frozen, loaded.vocabulary)
    head = head_of(
        loaded, network, kv_budget_tokens=kv_budget_tokens, threads=threads, dtype=dtype, target_head=frozen.head
    )
    return LoadedHead(head, loaded.manifest)
