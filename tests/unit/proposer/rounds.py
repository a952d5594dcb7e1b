"""Manifests and requests for the proposer's tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from contracts.capability import SourceDescription
from contracts.frontier import Frontier
from contracts.manifest import Manifest, RoundManifest, TargetIdentity
from contracts.ports import ProposeRequest
from contracts.sampling import SamplingPolicy


def session_manifest(
    sources: Sequence[SourceDescription],
    *,
    vocab_size: int = 97,
    context_length: int = 512,
    policy: SamplingPolicy | None = None,
    node_budget: int = 64,
    max_depth: int = 32,
    parent: str = "",
) -> Manifest:
    policy = policy or SamplingPolicy(temperature=0.0)
    return Manifest(
        target=TargetIdentity("tiny", "c" * 64, "t" * 64, vocab_size, context_length, "float32", "cpu", "test"),
        sampling=policy.to_json(),
        sources=tuple(sources),
        verifier="greedy",
        exactness="exact",
        node_budget=node_budget,
        max_depth=max_depth,
        parent=parent,
    )


@dataclass
class Rounds:
    """Makes well-formed requests of one session; `overrides` replace fields of the round manifest."""

    manifest: Manifest
    session_id: str = "s"
    policy: SamplingPolicy = field(default_factory=lambda: SamplingPolicy(temperature=0.0))

    def request(
        self,
        source: str,
        prefix: Sequence[int],
        *,
        node_budget: int = 8,
        max_depth: int = 8,
        options: Mapping[str, int] | None = None,
        round_id: int = 0,
        **overrides: object,
    ) -> ProposeRequest:
        ids = np.array(prefix, dtype=np.int64)
        fields: dict[str, object] = {
            "manifest_hash": self.manifest.hash,
            "session_id": self.session_id,
            "round_id": round_id,
            "prefix_len": len(ids),
            "frontier": Frontier(ids).digest,
            "target_generation": round_id,
            "plan": (),
        }
        fields.update(overrides)
        return ProposeRequest(
            source=source,
            manifest=RoundManifest(**fields),  # type: ignore[arg-type]
            policy=self.policy,
            prefix=ids,
            node_budget=node_budget,
            max_depth=max_depth,
            options=options or {},
        )
