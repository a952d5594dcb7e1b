"""Untrained head packages for a tiny service checkpoint: random weights, everything else as in a trained one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from models.checkpoint import digest, tokenizer_digest
from models.config import read_config
from models.weights import read_weights
from proposer.heads import package
from proposer.heads.families import Frozen, network_of
from proposer.heads.package import HeadManifest
from proposer.heads.vocabulary import DraftVocabulary
from tests.contract.tiny_service import EOS

TAPS = {"eagle3": ("layer:0", "layer:1", "final_norm"), "medusa": ("final_norm",)}


def tiny_head(directory: Path, checkpoint: Path, family: str = "eagle3", *, seed: int = 0) -> Path:
    """A package below `directory` for the target in `checkpoint`."""
    config = read_config(checkpoint)
    frozen = Frozen.of(config, read_weights(checkpoint, config, torch.float32))
    vocabulary = DraftVocabulary(np.arange(1, 200), target_size=config.vocab_size, eos_ids=(EOS,))
    manifest = HeadManifest(
        family=family,
        offsets=(2,) if family == "eagle3" else (2, 3, 4),
        depth=0 if family == "eagle3" else 3,
        projection="shared",
        taps=TAPS[family],
        shape={"inner": 40} if family == "eagle3" else {"blocks": 1},
        target="tiny",
        target_digest=digest(checkpoint),
        tokenizer_digest=tokenizer_digest(checkpoint),
        vocabulary_size=len(vocabulary),
        target_vocabulary_size=config.vocab_size,
        vocabulary_sha256="",
        eos_ids=(EOS,),
    )
    network = network_of(manifest, frozen, vocabulary)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            scale = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.3
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale + (parameter.dim() == 1))
    package.save(directory / family, manifest, dict(network.named_parameters()), vocabulary)
    return directory / family
