"""What is checked before a session costs anything: its manifest against the engine's own view, its policy, its size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from contracts.capability import Exactness, admit, taps_of
from contracts.errors import FailedPrecondition, InvalidArgument
from contracts.manifest import RNG_POLICY, TOPOLOGY_COMPILER, Manifest, TargetIdentity, canonical_bytes
from contracts.ports import OpenSession
from contracts.sampling import check_sampling
from models.passes import tap_layers
from verifier.selection.base import Verifier

MAX_ID_CHARS = 256
MAX_LEASE_MS = 3_600_000


@dataclass(frozen=True)
class Checked:
    """An opening that nothing but the other sessions' KV stands in the way of."""

    request: OpenSession
    verifier: Verifier
    taps: tuple[str, ...]


def check_opening(
    request: OpenSession, target: TargetIdentity, verifiers: Mapping[str, Verifier], *, max_rows: int, kv_tokens: int
) -> Verifier:
    """The verifier that the session binds.

    Raises InvalidArgument for what is wrong in itself, FailedPrecondition for a manifest sealed for another target,
    tokenizer, numeric path or for sources that the verifier is not proved for; both name the field.
    """
    manifest, policy = request.manifest, request.policy
    if not 1 <= len(request.session_id) <= MAX_ID_CHARS:
        raise InvalidArgument("session_id", f"{len(request.session_id)} characters, 1 to {MAX_ID_CHARS} allowed")
    if len(request.cache_scope) > MAX_ID_CHARS:
        raise InvalidArgument("cache_scope", f"{len(request.cache_scope)} characters, at most {MAX_ID_CHARS} allowed")
    if not 1 <= request.lease_ms <= MAX_LEASE_MS:
        raise InvalidArgument("lease_ms", f"{request.lease_ms} is outside [1, {MAX_LEASE_MS}]")
    check_sampling(policy, vocab_size=target.vocab_size)
    _check_prompt(request, target.vocab_size)
    _check_view(manifest, target)
    if canonical_bytes(manifest.sampling) != canonical_bytes(policy.to_json()):
        raise FailedPrecondition("manifest.sampling", "the policy sent is not the policy sealed")
    if not 0 <= manifest.node_budget <= max_rows:
        raise InvalidArgument("manifest.node_budget", f"{manifest.node_budget} is outside [0, {max_rows}]")
    if manifest.strict and target.strict_rows is not None and manifest.node_budget >= target.strict_rows:
        raise InvalidArgument(
            "manifest.node_budget",
            f"{manifest.node_budget}; a strict session's passes have at most {target.strict_rows} rows here, the anchor's "
            "included",
        )
    if manifest.max_depth < 0:
        raise InvalidArgument("manifest.max_depth", f"{manifest.max_depth} is negative")
    if manifest.exactness not in set(Exactness):
        raise InvalidArgument("manifest.exactness", f"unknown {manifest.exactness!r}; known: {', '.join(Exactness)}")
    verifier = verifiers.get(manifest.verifier)
    if verifier is None:
        known = ", ".join(sorted(verifiers))
        raise InvalidArgument("manifest.verifier", f"unknown verifier {manifest.verifier!r}; known: {known}")
    admit(
        verifier.capability,
        manifest.sources,
        policy,
        exact_mode=manifest.exactness == Exactness.EXACT,
        tokenizer_digest=target.tokenizer_digest,
        target_digest=target.checkpoint_digest,
    )
    whole = len(request.prompt) + policy.max_tokens - request.published
    if whole > target.context_length:
        raise InvalidArgument(
            "prompt",
            f"{len(request.prompt)} tokens and {policy.max_tokens - request.published} to come exceed the context of "
            f"{target.context_length}",
        )
    if kv_capacity(request) > kv_tokens:
        raise InvalidArgument(
            "prompt", f"the session needs {kv_capacity(request)} KV rows, the whole budget is {kv_tokens}"
        )
    return verifier


def check_taps(manifest: Manifest, num_layers: int) -> tuple[str, ...]:
    """The taps that the session exports. Raises InvalidArgument naming a source whose taps the target does not have."""
    for source in manifest.sources:
        try:
            tap_layers(source.taps, num_layers)
        except InvalidArgument as error:
            raise InvalidArgument("manifest.sources.taps", f"source {source.name!r}: {error.message}") from error
    return taps_of(manifest.sources)


def same_opening(known: OpenSession, repeated: OpenSession) -> bool:
    """Whether a request for a known session id is that session's own, sent again."""
    return (
        known.manifest.hash == repeated.manifest.hash
        and known.published == repeated.published
        and known.cache_scope == repeated.cache_scope
        and np.array_equal(known.prompt, repeated.prompt)
    )


def kv_capacity(request: OpenSession) -> int:
    """KV rows the session can need at most: all committed ones before its last round, the anchor's, its candidates'."""
    committed = len(request.prompt) + request.policy.max_tokens - request.published - 2
    return committed + 1 + request.manifest.node_budget


def _check_prompt(request: OpenSession, vocab_size: int) -> None:
    prompt = request.prompt
    if prompt.ndim != 1 or not len(prompt):
        raise InvalidArgument("prompt", f"shape {prompt.shape}; one dimension and at least one token are needed")
    if not np.issubdtype(prompt.dtype, np.integer) or int(prompt.min()) < 0 or int(prompt.max()) >= vocab_size:
        raise InvalidArgument("prompt", f"token ids must be integers within [0, {vocab_size})")
    most = min(len(prompt), request.policy.max_tokens) - 1
    if not 0 <= request.published <= most:
        raise InvalidArgument("published", f"{request.published} is outside [0, {most}]")


def _check_view(manifest: Manifest, target: TargetIdentity) -> None:
    for part in fields(TargetIdentity):
        sealed, ours = getattr(manifest.target, part.name), getattr(target, part.name)
        if sealed != ours:
            raise FailedPrecondition(f"manifest.target.{part.name}", f"{sealed!r} is sealed, this replica has {ours!r}")
    if manifest.topology_compiler != TOPOLOGY_COMPILER:
        raise FailedPrecondition(
            "manifest.topology_compiler", f"{manifest.topology_compiler!r}, not {TOPOLOGY_COMPILER!r}"
        )
    if manifest.rng != RNG_POLICY:
        raise FailedPrecondition("manifest.rng", f"{manifest.rng!r}, not {RNG_POLICY!r}")
