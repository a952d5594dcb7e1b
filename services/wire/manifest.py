"""Manifests on the wire: typed fields beside the sealed hash, which the receiver recomputes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from contracts.errors import FailedPrecondition, InvalidArgument
from contracts.manifest import Manifest, RoundManifest, SourcePlan, TargetIdentity
from contracts.sampling import SamplingPolicy
from protos.draftproof.v1 import manifest_pb2 as pb
from services.wire.capability import decode_source, encode_source
from services.wire.sampling import decode_sampling, encode_sampling

MAX_SOURCES = 64

M = TypeVar("M")


def encode_target(target: TargetIdentity) -> pb.TargetIdentity:
    """Field by field."""
    return pb.TargetIdentity(**target.__dict__)


def decode_target(message: pb.TargetIdentity) -> TargetIdentity:
    """Field by field."""
    return TargetIdentity(**{name: getattr(message, name) for name in TargetIdentity.__dataclass_fields__})


def _policy_of(sampling: Mapping[str, Any]) -> SamplingPolicy:
    bias = {int(token): value for token, value in sampling.get("logit_bias", {}).items()}
    try:
        return SamplingPolicy(**{**sampling, "logit_bias": bias})
    except TypeError as error:
        raise InvalidArgument("manifest.sampling", str(error)) from error


def encode_manifest(manifest: Manifest) -> pb.Manifest:
    """Raises InvalidArgument naming the field for what the message's types cannot hold."""
    return _typed(
        "manifest",
        pb.Manifest,
        target=encode_target(manifest.target),
        sampling=encode_sampling(_policy_of(manifest.sampling)),
        sources=[encode_source(source) for source in manifest.sources],
        verifier=manifest.verifier,
        exactness=manifest.exactness,
        node_budget=manifest.node_budget,
        max_depth=manifest.max_depth,
        budget=manifest.budget,
        strict=manifest.strict,
        releases=dict(manifest.releases),
        options=dict(manifest.options),
        indexes=dict(manifest.indexes),
        tenant=manifest.tenant,
        topology_compiler=manifest.topology_compiler,
        rng=manifest.rng,
        parent=manifest.parent,
        hash=manifest.hash,
    )


def decode_manifest(message: pb.Manifest) -> Manifest:
    """Raises FailedPrecondition naming manifest.hash where the fields do not hash to what was sealed."""
    if len(message.sources) > MAX_SOURCES:
        raise InvalidArgument("manifest.sources", f"{len(message.sources)} sources, at most {MAX_SOURCES}")
    manifest = Manifest(
        target=decode_target(message.target),
        sampling=decode_sampling(message.sampling, "manifest.sampling").to_json(),
        sources=tuple(decode_source(source) for source in message.sources),
        verifier=message.verifier,
        exactness=message.exactness,
        node_budget=message.node_budget,
        max_depth=message.max_depth,
        budget=message.budget,
        strict=message.strict,
        releases=dict(message.releases),
        options=dict(message.options),
        indexes=dict(message.indexes),
        tenant=message.tenant,
        topology_compiler=message.topology_compiler,
        rng=message.rng,
        parent=message.parent,
    )
    _check_hash("manifest.hash", message.hash, manifest.hash)
    return manifest


def encode_round(manifest: RoundManifest) -> pb.RoundManifest:
    """Raises InvalidArgument naming the field for negative coordinates."""
    return _typed(
        "round",
        pb.RoundManifest,
        manifest_hash=manifest.manifest_hash,
        session_id=manifest.session_id,
        round_id=manifest.round_id,
        prefix_len=manifest.prefix_len,
        frontier=manifest.frontier,
        target_generation=manifest.target_generation,
        plan=[
            _typed(
                "round.plan", pb.SourcePlan, source=plan.source, node_budget=plan.node_budget, max_depth=plan.max_depth
            )
            for plan in manifest.plan
        ],
        source_generations=dict(manifest.source_generations),
        live_generation=manifest.live_generation,
        hash=manifest.hash,
    )


def decode_round(message: pb.RoundManifest) -> RoundManifest:
    """Raises FailedPrecondition naming round.hash where the fields do not hash to what was sealed."""
    if len(message.plan) > MAX_SOURCES:
        raise InvalidArgument("round.plan", f"{len(message.plan)} sources, at most {MAX_SOURCES}")
    manifest = RoundManifest(
        manifest_hash=message.manifest_hash,
        session_id=message.session_id,
        round_id=message.round_id,
        prefix_len=message.prefix_len,
        frontier=message.frontier,
        target_generation=message.target_generation,
        plan=tuple(SourcePlan(plan.source, plan.node_budget, plan.max_depth) for plan in message.plan),
        source_generations=dict(message.source_generations),
        live_generation=message.live_generation,
    )
    _check_hash("round.hash", message.hash, manifest.hash)
    return manifest


def _check_hash(field: str, sealed: str, computed: str) -> None:
    if sealed != computed:
        raise FailedPrecondition(field, f"sealed as {sealed[:16]!r}, these fields hash to {computed[:16]!r}")


def _typed(field: str, message: type[M], **values: Any) -> M:
    try:
        return message(**values)
    except (ValueError, TypeError) as error:
        # protobuf does not say which field it was.
        for name, value in values.items():
            try:
                message(**{name: value})
            except (ValueError, TypeError):
                raise InvalidArgument(f"{field}.{name}", f"{value!r} cannot be sent: {error}") from error
        raise
