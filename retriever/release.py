"""A release: an immutable list of segments and the manifest of everything their tokens depend on (M7.7, 0x04C)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from contracts.errors import DataLoss, FailedPrecondition, InvalidArgument

FORMAT = "draftproof.release/1"
KEY_ENCODING = "codes:id+1|rank+1;boundary=0;suffix_array=forward"
BYTE_ORDER = "little"
COUNTER_BITS = 64
PRUNING = "best-first:count-desc,token-asc,depth-asc,parent-asc"


@dataclass(frozen=True, slots=True)
class ReleaseManifest:
    """What a release binds. Two releases that differ in any of it have different ids.

    corpus_snapshot: digest or version of the source material; licence_policy: under which terms it is used.
    exclusion_sha256: the evaluation-exclusion manifest ("" where nothing was excluded).
    tokenizer_sha256: digest of the tokenizer files; normalisation: what is done to text before them.
    vocabulary_size: ids lie below it; added tokens are counted in.
    context_length, continuation_length: the longest suffix and the deepest trie a query may ask for, in tokens.
    key_encoding, byte_order, counter_bits, pruning: how codes, arrays, counts and ties are to be read.
    builder_commit: the source revision that built it; target_family: the checkpoints it was calibrated for.
    tenants: who may see it; empty means everybody.
    """

    corpus_snapshot: str
    licence_policy: str
    exclusion_sha256: str
    tokenizer_sha256: str
    normalisation: str
    vocabulary_size: int
    context_length: int
    continuation_length: int
    builder_commit: str
    target_family: str
    key_encoding: str = KEY_ENCODING
    byte_order: str = BYTE_ORDER
    counter_bits: int = COUNTER_BITS
    pruning: str = PRUNING
    tenants: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("vocabulary_size", "context_length", "continuation_length"):
            if getattr(self, name) < 1:
                raise InvalidArgument(f"release.{name}", f"{getattr(self, name)} is below 1")


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """One segment of a release: content address, size in bytes, tokens held."""

    digest: str
    size_bytes: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Release:
    """The manifest and the segments, in their order. `release_id` is the sha256 of the canonical JSON of both."""

    manifest: ReleaseManifest
    segments: tuple[SegmentEntry, ...]

    def canonical_bytes(self) -> bytes:
        """Canonical JSON: sorted keys, no spaces, UTF-8."""
        record = {"format": FORMAT, "manifest": asdict(self.manifest), "segments": [asdict(s) for s in self.segments]}
        return json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    @property
    def release_id(self) -> str:
        """sha256 of `canonical_bytes`, hexadecimal."""
        return hashlib.sha256(self.canonical_bytes()).hexdigest()

    @property
    def tokens(self) -> int:
        """Tokens over all segments."""
        return sum(segment.tokens for segment in self.segments)


def release_from_bytes(data: bytes, release_id: str) -> Release:
    """Parse canonical bytes. Raises DataLoss where they do not hash to the id or are no release of this format."""
    found = hashlib.sha256(data).hexdigest()
    if found != release_id:
        raise DataLoss("release", f"bytes of {found} came under the name {release_id}")
    try:
        record = json.loads(data)
    except ValueError as error:
        raise DataLoss("release", f"is not JSON: {error}") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise DataLoss("release.format", f"is not {FORMAT}")
    try:
        manifest = ReleaseManifest(**{**record["manifest"], "tenants": tuple(record["manifest"]["tenants"])})
        return Release(manifest, tuple(SegmentEntry(**entry) for entry in record["segments"]))
    except (KeyError, TypeError) as error:
        raise DataLoss("release", f"has other fields than {FORMAT}: {error}") from error


@dataclass(frozen=True, slots=True)
class Binding:
    """What a retriever requires of every release it serves; None leaves a field open."""

    tokenizer_sha256: str | None = None
    vocabulary_size: int | None = None
    target_family: str | None = None


def check_binding(manifest: ReleaseManifest, binding: Binding) -> None:
    """Raises FailedPrecondition naming the first field in which the release is not what this build or binding reads."""
    readable: Sequence[tuple[str, Any]] = (
        ("key_encoding", KEY_ENCODING),
        ("byte_order", BYTE_ORDER),
        ("counter_bits", COUNTER_BITS),
        ("pruning", PRUNING),
        *((field.name, getattr(binding, field.name)) for field in fields(binding)),
    )
    for name, expected in readable:
        found = getattr(manifest, name)
        if expected is not None and found != expected:
            raise FailedPrecondition(f"release.{name}", f"the release has {found!r}, this retriever {expected!r}")
