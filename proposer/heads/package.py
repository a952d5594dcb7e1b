"""A head on disk: `head.safetensors` and `manifest.json`, written whole and read strictly.

The manifest names what the tensors mean and what they were made for: family, offsets, depth, projection kind, taps, the base
checkpoint, the tokenizer, the vocabulary map and the training run. The target's embedding and vocabulary rows are no part of
a package: they come from the checkpoint the manifest names. A missing, left-over or misshapen tensor, another base, another
tokenizer or another vocabulary is a typed error; nothing is ever filled in (a head left random and served is the field's
worst bug). A Medusa-2 head was trained with a changed backbone, so its package must carry that backbone's adapter.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from contracts.errors import DataLoss, FailedPrecondition, InvalidArgument
from proposer.heads.manifest_checks import check
from proposer.heads.vocabulary import DraftVocabulary

FORMAT = 1
WEIGHTS = "head.safetensors"
MANIFEST = "manifest.json"
# Tensors with this prefix are a changed backbone's adapter (Medusa-2), not the head's.
ADAPTER = "adapter."
VOCABULARY = "vocabulary"


@dataclass(frozen=True)
class HeadManifest:
    """offsets: of the tokens that depths 1, 2, ... predict, counted from the row read (2: the candidate after the anchor;
    a recurrent head lists the first only). depth: of drafts; 0 for any. projection: "shared" (the target's vocabulary rows)
    or "own". shape: the family's own sizes (blocks, prefix, inner; a Medusa-2 package's adapter's rank, which one without it
    names in `training`; the flags of an imported head). eos_ids: the target's, drafts end there. weights_sha256,
    vocabulary_sha256: of the file and of the id list. training: data digest, recipe, budget, figures; of an imported head,
    where it came from. decoder: an imported layer's own configuration, keys as in a checkpoint's config.json; empty: it is
    shaped as the target's. Other digests as in `models.checkpoint`."""

    family: str
    offsets: tuple[int, ...]
    depth: int
    projection: str
    taps: tuple[str, ...]
    shape: Mapping[str, int]
    target: str
    target_digest: str
    tokenizer_digest: str
    vocabulary_size: int
    target_vocabulary_size: int
    vocabulary_sha256: str
    eos_ids: tuple[int, ...]
    training: Mapping[str, Any] = field(default_factory=dict)
    weights_sha256: str = ""
    format: int = FORMAT
    decoder: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises InvalidArgument for another format and as `manifest_checks.check` does."""
        if self.format != FORMAT:
            raise InvalidArgument("head.format", f"{self.format!r}, this release reads {FORMAT}")
        check(self)


@dataclass(frozen=True)
class HeadPackage:
    """manifest, vocabulary, and all tensors by name in float32: the head's, and the adapter's where there is one."""

    manifest: HeadManifest
    vocabulary: DraftVocabulary
    tensors: Mapping[str, Tensor]
    adapter: Mapping[str, Tensor]


def vocabulary_digest(vocabulary: DraftVocabulary) -> str:
    """SHA-256 hex of the ids as little-endian int32."""
    return hashlib.sha256(vocabulary.ids.astype("<i4").tobytes()).hexdigest()


def save(
    directory: Path,
    manifest: HeadManifest,
    tensors: Mapping[str, Tensor],
    vocabulary: DraftVocabulary,
    *,
    dtype: torch.dtype | None = torch.bfloat16,
) -> None:
    """Write a package, tensors in `dtype`; None: as they are. The manifest goes last, so that half a package has none.

    Raises InvalidArgument for a Medusa-2 package without an adapter.
    """
    _check_adapter(manifest, tensors)
    directory.mkdir(parents=True, exist_ok=True)
    stored = {name: tensor.detach().to(dtype or tensor.dtype).contiguous() for name, tensor in tensors.items()}
    stored[VOCABULARY] = torch.from_numpy(vocabulary.ids.astype(np.int32))
    (directory / MANIFEST).unlink(missing_ok=True)
    save_file(stored, directory / WEIGHTS)
    entry = asdict(manifest) | {
        "weights_sha256": _sha256(directory / WEIGHTS),
        "vocabulary_sha256": vocabulary_digest(vocabulary),
        "vocabulary_size": len(vocabulary),
    }
    unfinished = directory / (MANIFEST + ".unfinished")
    unfinished.write_text(json.dumps(entry, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(unfinished, directory / MANIFEST)


def read_manifest(directory: Path) -> HeadManifest:
    """Raises InvalidArgument for an absent manifest, unknown keys, missing ones and values that no such head has."""
    path = directory / MANIFEST
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidArgument("head", f"{directory} holds no {MANIFEST}") from None
    except ValueError as error:
        raise InvalidArgument("head", f"{path} is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise InvalidArgument("head.manifest", f"{path.name} holds no mapping of fields")
    for name in ("offsets", "taps", "eos_ids"):
        if isinstance(raw.get(name), list):
            raw[name] = tuple(raw[name])
    try:
        return HeadManifest(**raw)
    except TypeError as error:
        raise InvalidArgument("head.manifest", str(error)) from error


def load(
    directory: Path,
    expected: Mapping[str, Sequence[int]],
    *,
    target_digest: str,
    tokenizer_digest: str,
    eos_ids: Sequence[int],
) -> HeadPackage:
    """The package in `directory` for the target with these digests and end-of-sequence ids. expected: shape of each of the
    package's tensors, an adapter's included.

    Raises FailedPrecondition (`head.target_digest`, `head.tokenizer_digest`, `head.eos_ids`) for a head made for another
    base, tokenizer or end of sequence; InvalidArgument for tensors missing, left over or misshapen,
    another vocabulary than the manifest's, and a Medusa-2 head without its adapter; DataLoss
    where the file is not the one the manifest was written for.
    """
    manifest = read_manifest(directory)
    if manifest.target_digest != target_digest:
        raise FailedPrecondition("head.target_digest", f"{directory.name} was trained for another target checkpoint")
    if manifest.tokenizer_digest != tokenizer_digest:
        raise FailedPrecondition("head.tokenizer_digest", f"{directory.name} was trained with another tokenizer")
    if set(manifest.eos_ids) != set(eos_ids):
        raise FailedPrecondition(
            "head.eos_ids", f"{directory.name} ends at {sorted(manifest.eos_ids)}, the target at {sorted(eos_ids)}"
        )
    path = directory / WEIGHTS
    if not path.is_file():
        raise InvalidArgument("head", f"{directory} holds no {WEIGHTS}")
    if _sha256(path) != manifest.weights_sha256:
        raise DataLoss("head.weights_sha256", f"{path.name} is not the file that the manifest describes")
    found = _tensors(path)
    vocabulary = _vocabulary(found, manifest)
    _check_adapter(manifest, found)
    missing = sorted(set(expected) - set(found))
    left_over = sorted(set(found) - set(expected))
    if missing:
        raise InvalidArgument("head.tensors", f"lacks {', '.join(missing[:5])}")
    if left_over:
        raise InvalidArgument("head.tensors", f"holds {', '.join(left_over[:5])}, which no {manifest.family} head has")
    for name, shape in expected.items():
        if tuple(found[name].shape) != tuple(shape):
            raise InvalidArgument(f"head.tensors.{name}", f"has shape {tuple(found[name].shape)}, not {tuple(shape)}")
    adapter = {name: found.pop(name) for name in list(found) if name.startswith(ADAPTER)}
    return HeadPackage(manifest, vocabulary, found, adapter)


def _vocabulary(found: dict[str, Tensor], manifest: HeadManifest) -> DraftVocabulary:
    ids = found.pop(VOCABULARY, None)
    if ids is None:
        raise InvalidArgument("head.vocabulary", f"{WEIGHTS} holds no id list")
    vocabulary = DraftVocabulary(
        ids.numpy().astype(np.int64), target_size=manifest.target_vocabulary_size, eos_ids=manifest.eos_ids
    )
    if len(vocabulary) != manifest.vocabulary_size or vocabulary_digest(vocabulary) != manifest.vocabulary_sha256:
        raise InvalidArgument("head.vocabulary", "the id list is not the one the manifest names")
    return vocabulary


def _check_adapter(manifest: HeadManifest, tensors: Mapping[str, Tensor]) -> None:
    present = any(name.startswith(ADAPTER) for name in tensors)
    if manifest.family == "medusa2" and not present:
        raise InvalidArgument(
            "head.adapter", "a Medusa-2 head alone is no package: its backbone was changed and must come with it"
        )
    if manifest.family != "medusa2" and present:
        raise InvalidArgument("head.adapter", f"a {manifest.family} head goes with the unchanged backbone")


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            return {
                name: tensor if name == VOCABULARY else tensor.float()
                for name, tensor in ((name, file.get_tensor(name)) for name in names)
            }
    except SafetensorError as error:
        raise DataLoss("head", f"{path.name} cannot be read: {error}") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
