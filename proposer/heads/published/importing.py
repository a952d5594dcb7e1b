"""A published head made a package: which layout it is, read under our names, bound to the target that the user states.

The target is never taken from the checkpoint's own word: a name is no digest. What it says is kept in the manifest's
`training`, beside the files' digests.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from contracts.errors import Internal, InvalidArgument
from models.checkpoint import digest, tokenizer_digest
from models.config import read_config
from models.passes import tap_layers
from models.weights import read_weights
from proposer.heads import package
from proposer.heads.families import Frozen, network_of, tensor_shapes
from proposer.heads.package import HeadManifest
from proposer.heads.published.eagle_layout import read_eagle, read_eagle3
from proposer.heads.published.found import Config, Found
from proposer.heads.published.medusa import read_medusa, read_vllm_medusa
from proposer.heads.published.tensors import Tensors, read_json


def read_published(
    directory: Path, target: Frozen, eos_ids: tuple[int, ...], *, taps: Sequence[str] = ()
) -> tuple[Found, Tensors]:
    """The head in `directory`, all of whose tensors have been taken. taps: an EAGLE-3 head's, where it cannot say them.

    Raises InvalidArgument for a layout that is none of these and for missing, left-over and misshapen tensors;
    FailedPrecondition for what computes another function.
    """
    config, tensors = Config(read_json(directory)), Tensors(directory)
    found = _read(config, tensors, target, eos_ids, taps)
    tensors.finish(found.layout)
    if taps and found.family != "eagle3-published":
        raise InvalidArgument("published.taps", f"a {found.layout} head reads {', '.join(found.taps)} and nothing else")
    tap_layers(found.taps, target.config.num_layers)
    return found, tensors


def _read(config: Config, tensors: Tensors, target: Frozen, eos_ids: tuple[int, ...], taps: Sequence[str]) -> Found:
    kind = config.raw.get("speculators_model_type")
    if kind == "eagle":
        return read_eagle(config, tensors, target, eos_ids, speculators=True)
    if kind == "eagle3":
        return read_eagle3(config, tensors, target, eos_ids, speculators=True, taps=taps)
    if kind is not None:
        raise InvalidArgument("published.config.speculators_model_type", f"{kind!r} is not read; known: eagle, eagle3")
    if "medusa_num_heads" in config.raw:
        return read_medusa(config, tensors, target, eos_ids)
    if config.raw.get("model_type") == "medusa":
        return read_vllm_medusa(config, tensors, target, eos_ids)
    if "draft_vocab_size" in config.raw or tensors.starts("midlayer."):
        return read_eagle3(config, tensors, target, eos_ids, speculators=False, taps=taps)
    if tensors.starts("fc.") and tensors.starts("layers.0."):
        return read_eagle(config, tensors, target, eos_ids, speculators=False)
    raise InvalidArgument("published.layout", "is none of Medusa's, EAGLE's, EAGLE-3's or speculators' (eagle, eagle3)")


def import_head(
    directory: Path,
    out: Path,
    checkpoint: Path,
    *,
    target_name: str,
    eos_ids: tuple[int, ...],
    taps: Sequence[str] = (),
) -> HeadManifest:
    """Writes a package for the target in `checkpoint`, tensors in the file's own types; returns its manifest.

    Raises as `read_published`; nothing is written then.
    """
    config = read_config(checkpoint)
    target = Frozen.of(config, read_weights(checkpoint, config, torch.float32))
    found, tensors = read_published(directory, target, eos_ids, taps=taps)
    manifest = HeadManifest(
        family=found.family,
        offsets=found.offsets,
        depth=found.depth,
        projection=found.projection,
        taps=found.taps,
        shape=found.shape,
        target=target_name,
        target_digest=digest(checkpoint),
        tokenizer_digest=tokenizer_digest(checkpoint),
        vocabulary_size=len(found.vocabulary),
        target_vocabulary_size=config.vocab_size,
        vocabulary_sha256="",
        eos_ids=eos_ids,
        training={"published": {"layout": found.layout, "files": tensors.files, "base": found.base}},
        decoder=found.decoder,
    )
    expected = tensor_shapes(network_of(manifest, target, found.vocabulary))
    made = {name: tuple(tensor.shape) for name, tensor in found.tensors.items()}
    if made != dict(expected):
        raise Internal("published.tensors", f"reading made {sorted(set(made.items()) ^ set(expected.items()))}")
    package.save(out, manifest, found.tensors, found.vocabulary, dtype=None)
    return package.read_manifest(out)
