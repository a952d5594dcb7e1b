"""The digest that identifies a Verify call's payload, so that a repeat is told from a different call under the same id."""

from __future__ import annotations

import struct

from contracts.errors import InvalidArgument
from contracts.graph import CandidateGraph
from contracts.manifest import RoundManifest
from contracts.sha256 import sha256


def payload_digest(manifest: RoundManifest, graph: CandidateGraph) -> str:
    """SHA-256 hex over the round manifest's hash, the rows, the draws and the laws, all little-endian.

    Raises InvalidArgument for numbers past their types.
    """
    columns = (
        ("token_ids", "I", graph.token_list),
        ("parents", "i", graph.parent_list),
        ("draws", "i", [number for draw in graph.draws for number in (draw.parent, draw.row, draw.law)]),
    )
    packed = b"".join(_packed(name, code, numbers) for name, code, numbers in columns)
    digest = sha256(manifest.hash.encode() + packed + "\0".join(d.source for d in graph.draws).encode())
    for law in graph.laws:
        digest.update(law.token_ids.astype("<u4").tobytes())
        digest.update(law.weights.astype("<u8").tobytes())
    for kind in (*sorted(graph.semantics), *sorted(graph.relations)):
        digest.update(kind.encode())
    made: str = digest.hexdigest()
    return made


def _packed(name: str, code: str, numbers: list[int]) -> bytes:
    # Plain packing: numpy's fixed cost a call would be most of hashing a round's few dozen numbers.
    try:
        return struct.pack(f"<{len(numbers)}{code}", *numbers)
    except struct.error as error:
        raise InvalidArgument(f"graph.{name}", "has a number that 32 bits do not hold") from error
