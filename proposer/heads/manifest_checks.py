"""What a head's manifest may say: the kind of every field, and which offsets, taps, projection and sizes a family has.

A manifest is what gives tensors their meaning, so a field that nothing reads while loading is compared with what the code
does: a head trained for other offsets or taps has tensors of the same names and shapes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from contracts.errors import InvalidArgument

if TYPE_CHECKING:
    from proposer.heads.package import HeadManifest

FINAL = "final_norm"
# Heads of the deepest package that is trained or read; training looks this many rows back.
MAX_DEPTH = 16
# Offset of the token that the first draft predicts, from the row that predicted the anchor.
FIRST_OFFSET = 2

_TAP = re.compile(r"final_norm|layer:(0|[1-9]\d*)")
_DIGEST = re.compile(r"[0-9a-z]{64}")


@dataclass(frozen=True)
class _Family:
    """sizes: (least, most) of each size that a manifest must name; optional: of those it may. One tap, the final norm's,
    unless `any_taps`. recurrent: one network for all depths, so that the manifest's depth is 0 and its offset the first.
    imported: a published layout's function, whose layer has a configuration of its own."""

    sizes: Mapping[str, tuple[int, int]]
    optional: Mapping[str, tuple[int, int]]
    projections: tuple[str, ...] = ("shared",)
    any_taps: bool = False
    recurrent: bool = False
    imported: bool = False


_BLOCKS, _INNER, _RANK = (1, 64), (1, 1 << 17), (1, 1 << 12)
_FLAG = (0, 1)
_PUBLISHED = dict.fromkeys(("fc_bias", "qkv_bias", "out_bias", "norm_before_residual", "own_embedding"), _FLAG)
_FAMILIES = {
    "medusa": _Family({"blocks": _BLOCKS}, {}, ("shared", "own")),
    "medusa2": _Family({"blocks": _BLOCKS}, {"rank": _RANK}, ("shared", "own")),
    "hydra": _Family({"blocks": _BLOCKS, "prefix": (0, 0)}, {}),
    "hydra++": _Family({"blocks": _BLOCKS, "prefix": (1, 1)}, {"inner": _INNER}),
    "clover": _Family({"prefix": (0, 1)}, {"inner": _INNER}),
    "eagle": _Family({}, {"inner": _INNER}, recurrent=True),
    "eagle3": _Family({}, {"inner": _INNER}, any_taps=True, recurrent=True),
    "eagle-published": _Family(_PUBLISHED, {}, recurrent=True, imported=True),
    "eagle3-published": _Family(_PUBLISHED, {}, ("own",), any_taps=True, recurrent=True, imported=True),
}
FAMILIES = tuple(_FAMILIES)


def check(manifest: HeadManifest) -> None:
    """Raises InvalidArgument naming the first field (`head.FIELD`) of another kind, or of a value its family cannot have."""
    _check_kinds(manifest)
    family = _FAMILIES.get(manifest.family)
    if family is None:
        raise InvalidArgument("head.family", f"{manifest.family!r} is none of {', '.join(FAMILIES)}")
    if manifest.projection not in family.projections:
        raise InvalidArgument(
            "head.projection",
            f"{manifest.projection!r}, a {manifest.family} head has {' or '.join(family.projections)}",
        )
    least, most = (0, 0) if family.recurrent else (1, MAX_DEPTH)
    if not least <= manifest.depth <= most:
        raise InvalidArgument("head.depth", f"{manifest.depth}, a {manifest.family} head has {_range(least, most)}")
    expected = tuple(range(FIRST_OFFSET, FIRST_OFFSET + max(manifest.depth, 1)))
    if manifest.offsets != expected:
        raise InvalidArgument(
            "head.offsets", f"{manifest.offsets}, a {manifest.family} head of this depth has {expected}"
        )
    if bool(manifest.decoder) != family.imported:
        raise InvalidArgument(
            "head.decoder", "a layer's own configuration belongs to imported heads, and they need one"
        )
    _check_taps(manifest, family)
    _check_sizes(manifest, family)
    _check_vocabulary(manifest)


def check_layers(taps: tuple[str, ...], num_layers: int) -> None:
    """Raises InvalidArgument (`head.taps`) for a tap of a layer that a target of this many layers does not have."""
    for tap in taps:
        found = _TAP.fullmatch(tap)
        if found is not None and found[1] is not None and int(found[1]) >= num_layers:
            raise InvalidArgument("head.taps", f"{tap!r}, the target has layers 0 to {num_layers - 1}")


def _check_kinds(manifest: HeadManifest) -> None:
    texts = (
        "family",
        "projection",
        "target",
        "target_digest",
        "tokenizer_digest",
        "vocabulary_sha256",
        "weights_sha256",
    )
    for name in texts:
        if not isinstance(getattr(manifest, name), str):
            raise _kind(manifest, name, "a text")
    for name in ("target_digest", "tokenizer_digest"):
        if not _DIGEST.fullmatch(getattr(manifest, name)):
            raise _kind(manifest, name, "64 digits")
    for name in ("depth", "vocabulary_size", "target_vocabulary_size"):
        if not _whole(getattr(manifest, name)):
            raise _kind(manifest, name, "a whole number")
    for name in ("offsets", "eos_ids"):
        value = getattr(manifest, name)
        if not isinstance(value, tuple) or not all(_whole(one) for one in value):
            raise _kind(manifest, name, "a list of whole numbers")
    if not isinstance(manifest.taps, tuple) or not all(isinstance(one, str) for one in manifest.taps):
        raise _kind(manifest, "taps", "a list of texts")
    if not isinstance(manifest.shape, Mapping) or not all(_whole(value) for value in manifest.shape.values()):
        raise _kind(manifest, "shape", "a mapping to whole numbers")
    for name in ("training", "decoder"):
        if not isinstance(getattr(manifest, name), Mapping):
            raise _kind(manifest, name, "a mapping")


def _check_taps(manifest: HeadManifest, family: _Family) -> None:
    taps = manifest.taps
    if not family.any_taps and taps != (FINAL,):
        raise InvalidArgument("head.taps", f"{taps}, a {manifest.family} head reads {FINAL} alone")
    if not taps or len(set(taps)) != len(taps) or not all(_TAP.fullmatch(tap) for tap in taps):
        raise InvalidArgument("head.taps", f"{taps} must be different rows, each {FINAL} or layer:K")


def _check_sizes(manifest: HeadManifest, family: _Family) -> None:
    allowed = {**family.sizes, **family.optional}
    missing, unknown = sorted(set(family.sizes) - set(manifest.shape)), sorted(set(manifest.shape) - set(allowed))
    if missing or unknown:
        problem = f"needs {', '.join(missing)}" if missing else f"has no {', '.join(unknown)}"
        raise InvalidArgument("head.shape", f"a {manifest.family} head {problem}")
    for name, value in manifest.shape.items():
        least, most = allowed[name]
        if not least <= value <= most:
            raise InvalidArgument(f"head.shape.{name}", f"{value}, a {manifest.family} head has {_range(least, most)}")


def _check_vocabulary(manifest: HeadManifest) -> None:
    size, target = manifest.vocabulary_size, manifest.target_vocabulary_size
    if not 1 <= size <= target:
        raise InvalidArgument("head.vocabulary_size", f"{size} is outside [1, {target}], the target's vocabulary")
    if len(set(manifest.eos_ids)) != len(manifest.eos_ids) or not all(0 <= one < target for one in manifest.eos_ids):
        raise InvalidArgument("head.eos_ids", f"{manifest.eos_ids} must be different ids within [0, {target})")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _range(least: int, most: int) -> str:
    return str(least) if least == most else f"{least} to {most}"


def _kind(manifest: HeadManifest, name: str, wanted: str) -> InvalidArgument:
    return InvalidArgument(f"head.{name}", f"{getattr(manifest, name)!r} is not {wanted}")
