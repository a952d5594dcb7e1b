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
    tokens, parents, draws = graph.token_list, graph.parent_list, graph.draws
    numbers = [*tokens, *parents]
    for parent, row, _, law in draws:
        numbers += (parent, row, law)
    try:
        # Plain packing, at once: numpy's fixed cost a call would be most of hashing a round's few dozen numbers.
        packed = struct.pack(f"<{len(tokens)}I{len(numbers) - len(tokens)}i", *numbers)
    except struct.error as error:
        raise _too_large(tokens, parents) from error
    parts = [manifest.hash.encode(), packed, "\0".join([draw[2] for draw in draws]).encode()]
    for drawn_from in graph.laws:
        parts.append(drawn_from.token_ids.astype("<u4").tobytes())
        parts.append(drawn_from.weights.astype("<u8").tobytes())
    for kinds in (graph.semantics, graph.relations):
        parts += [kind.encode() for kind in (sorted(kinds) if len(kinds) > 1 else kinds)]
    digest: str = sha256(b"".join(parts)).hexdigest()
    return digest


def _too_large(tokens: Sequence[int], parents: Sequence[int]) -> InvalidArgument:
    names = {"token_ids": (tokens, 0, 2**32), "parents": (parents, -(2**31), 2**31)}
    wrong = [name for name, (numbers, low, high) in names.items() if any(not low <= n < high for n in numbers)]
    return InvalidArgument(f"graph.{wrong[0] if wrong else 'draws'}", "has a number that 32 bits do not hold")
