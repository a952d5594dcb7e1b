"""Immutable manifests: what a session and a round act under, as canonical bytes and their SHA-256.

Canonical bytes are UTF-8 JSON with sorted keys, no spaces, and every float as its exact hexadecimal form, so that equal
manifests have equal bytes on every platform. The session manifest freezes everything M7.7 section 0x02B lists; the round
manifest adds the round's coordinates and names its session manifest by hash.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from contracts.capability import SourceDescription
from contracts.errors import InvalidArgument
from contracts.sha256 import sha256

TOPOLOGY_COMPILER = "full-prefix-merge/1"
RNG_POLICY = "splitmix64-coins/1"
# A claim of row invariance of this many rows holds whatever the rows, branching ones too.
ANY_ROWS = 1 << 30


def _canonical(value: Any) -> Any:
    if isinstance(value, bool) or value is None or isinstance(value, int | str):
        return value
    if isinstance(value, float):
        return {"f64": value.hex()}
    if isinstance(value, Mapping):
        return {str(key): _canonical(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        items = sorted(value) if isinstance(value, set | frozenset) else value
        return [_canonical(item) for item in items]
    raise InvalidArgument("manifest", f"{type(value).__name__} has no canonical form")


def canonical_bytes(value: Mapping[str, Any]) -> bytes:
    """Canonical UTF-8 JSON of a plain mapping."""
    return json.dumps(_canonical(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def sha256_hex(data: bytes) -> str:
    """Lower-case hexadecimal SHA-256."""
    digest: str = sha256(data).hexdigest()
    return digest


_text = json.encoder.encode_basestring


class _Sealed(ABC):
    """Canonical bytes and hash of a frozen record; both are computed once."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """A plain mapping of everything that is sealed."""

    @cached_property
    def canonical(self) -> bytes:
        return canonical_bytes(self.to_json())

    @cached_property
    def hash(self) -> str:
        return sha256_hex(self.canonical)


@dataclass(frozen=True)
class TargetIdentity:
    """The target as the verifier service sees it. Digests are SHA-256 hex of the files' contents.

    batching: the batch regime that its passes run under, which beyond `row_invariant_up_to` rows may show in the last bits
    of its logits. build: what `backend` was built from, which its times follow from, and its bits where they are not proved
    to stay. Both "" where not stated.
    """

    model: str
    checkpoint_digest: str
    tokenizer_digest: str
    vocab_size: int
    context_length: int
    dtype: str
    backend: str
    hardware: str
    row_invariant_up_to: int = 0
    batching: str = ""
    build: str = ""

    @property
    def strict_rows(self) -> int | None:
        """Rows that a strict session's pass may have, all on one path; None where any rows keep their bits."""
        return None if self.row_invariant_up_to >= ANY_ROWS else max(1, self.row_invariant_up_to)


@dataclass(frozen=True)
class Manifest(_Sealed):
    """What one session acts under. `sampling` is SamplingPolicy.to_json(); `releases` and `indexes` map a source to its
    index's release and name, `options` a source's option ("<source>.<name>") to the request's value. `tenant`: whose; live
    outputs belong to an index and a tenant, so a live generation names them only together with these. budget: "fixed" or
    "adaptive", the policy that chooses what is verified. strict: the text is bit for bit that of plain decoding on this
    target (docs/decisions/0018-under-load.md).
    """

    target: TargetIdentity
    sampling: Mapping[str, Any]
    sources: tuple[SourceDescription, ...]
    verifier: str
    exactness: str
    node_budget: int
    max_depth: int
    budget: str = "fixed"
    strict: bool = False
    releases: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, int] = field(default_factory=dict)
    indexes: Mapping[str, str] = field(default_factory=dict)
    tenant: str = ""
    topology_compiler: str = TOPOLOGY_COMPILER
    rng: str = RNG_POLICY
    parent: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "target": dict(self.target.__dict__),
            "sampling": dict(self.sampling),
            "sources": [source.to_json() for source in self.sources],
            "verifier": self.verifier,
            "exactness": self.exactness,
            "node_budget": self.node_budget,
            "max_depth": self.max_depth,
            "budget": self.budget,
            "strict": self.strict,
            "releases": dict(self.releases),
            "options": dict(self.options),
            "indexes": dict(self.indexes),
            "tenant": self.tenant,
            "topology_compiler": self.topology_compiler,
            "rng": self.rng,
            "parent": self.parent,
        }


@dataclass(frozen=True)
class SourcePlan:
    """One source's share of a round: how many candidates, how deep."""

    source: str
    node_budget: int
    max_depth: int


@dataclass(frozen=True)
class RoundManifest(_Sealed):
    """The coordinates of one round. `frontier` is the digest of the published prefix of `prefix_len` tokens."""

    manifest_hash: str
    session_id: str
    round_id: int
    prefix_len: int
    frontier: str
    target_generation: int
    plan: tuple[SourcePlan, ...]
    source_generations: Mapping[str, int] = field(default_factory=dict)
    live_generation: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "manifest": self.manifest_hash,
            "session": self.session_id,
            "round": self.round_id,
            "prefix_len": self.prefix_len,
            "frontier": self.frontier,
            "target_generation": self.target_generation,
            "plan": [[plan.source, plan.node_budget, plan.max_depth] for plan in self.plan],
            "source_generations": dict(self.source_generations),
            "live_generation": self.live_generation,
        }

    @cached_property
    def canonical(self) -> bytes:
        """The canonical bytes of `to_json`, written out: a round makes them at each of its services."""
        # Lists, and none where there is nothing to list: generators and sorting are code that a round may do without.
        shares = [f"[{_text(share.source)},{share.node_budget},{share.max_depth}]" for share in self.plan]
        plan = ",".join(shares)
        generations = ""
        if self.source_generations:
            generations = ",".join([f"{_text(name)}:{n}" for name, n in sorted(self.source_generations.items())])
        return (
            f'{{"frontier":{_text(self.frontier)},"live_generation":{self.live_generation},'
            f'"manifest":{_text(self.manifest_hash)},"plan":[{plan}],"prefix_len":{self.prefix_len},'
            f'"round":{self.round_id},"session":{_text(self.session_id)},"source_generations":{{{generations}}},'
            f'"target_generation":{self.target_generation}}}'
        ).encode()
