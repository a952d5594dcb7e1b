"""The digest that identifies a Verify call's payload, so that a repeat is told from a different call under the same id."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from contracts.errors import InvalidArgument
from contracts.graph import CandidateGraph
from contracts.manifest import RoundManifest
from contracts.sha256 import sha256


def payload_digest(manifest: RoundManifest, graph: CandidateGraph) -> str:
    """SHA-256 hex over the round manifest's hash, the rows, the draws and the laws, all little-endian.

    Raises InvalidArgument for numbers past their types.
    """
    tokens, parents = graph.token_list, graph.parent_list
    draws = [number for draw in graph.draws for number in (draw.parent, draw.row, draw.law)]
    try:
        # Plain packing, at once: numpy's fixed cost a call would be most of hashing a round's few dozen numbers.
        packed = struct.pack(f"<{len(tokens)}I{len(parents)}i{len(draws)}i", *tokens, *parents, *draws)
    except struct.error as error:
        raise _too_large(tokens, parents) from error
    sources = "\0".join([draw.source for draw in graph.draws])
    digest = sha256(b"".join((manifest.hash.encode(), packed, sources.encode())))
    for law in graph.laws:
        digest.update(law.token_ids.astype("<u4").tobytes())
        digest.update(law.weights.astype("<u8").tobytes())
    if graph.semantics or graph.relations:
        for kind in (*sorted(graph.semantics), *sorted(graph.relations)):
            digest.update(kind.encode())
    made: str = digest.hexdigest()
    return made


def _too_large(tokens: Sequence[int], parents: Sequence[int]) -> InvalidArgument:
    names = {"token_ids": (tokens, 0, 2**32), "parents": (parents, -(2**31), 2**31)}
    wrong = [name for name, (numbers, low, high) in names.items() if any(not low <= n < high for n in numbers)]
    return InvalidArgument(f"graph.{wrong[0] if wrong else 'draws'}", "has a number that 32 bits do not hold")
