"""The digest that identifies a Verify call's payload, so that a repeat is told from a different call under the same id."""

from __future__ import annotations

import hashlib

import numpy as np

from contracts.graph import CandidateGraph
from contracts.manifest import RoundManifest


def payload_digest(manifest: RoundManifest, graph: CandidateGraph) -> str:
    """SHA-256 hex over the round manifest's hash, the rows, the draws and the laws, all little-endian."""
    digest = hashlib.sha256(manifest.hash.encode())
    digest.update(graph.token_ids.astype("<u4").tobytes())
    digest.update(graph.parents.astype("<i4").tobytes())
    digest.update(np.array([[d.parent, d.row, d.law] for d in graph.draws], dtype="<i4").tobytes())
    digest.update("\0".join(d.source for d in graph.draws).encode())
    for law in graph.laws:
        digest.update(law.token_ids.astype("<u4").tobytes())
        digest.update(law.weights.astype("<u8").tobytes())
    for kind in (*sorted(graph.semantics), *sorted(graph.relations)):
        digest.update(kind.encode())
    return digest.hexdigest()
