"""A query as it goes over a link: its suffix is plain numbers on the way, and an array only where the search needs one.

Byte for byte what `encode` makes of a RetrieveQuestion, without a call of Python for each array and type that it holds.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np

from contracts.retrieval import RetrievalQuery
from services.link.codec import Decoder, RetrieveQuestion, encode, few

_Int64 = Annotated[int, msgspec.Meta(le=2**63 - 1)]
_decode = Decoder(RetrieveQuestion)


def encode_asked(traceparent: str, query: RetrievalQuery) -> bytes:
    """Raises InvalidArgument for what cannot be sent."""
    suffix = query.suffix
    if not few(suffix):
        return encode(RetrieveQuestion(traceparent, query))
    return encode(
        (
            traceparent,
            {
                "index": query.index,
                "release": query.release,
                "suffix": suffix.tolist(),
                "node_budget": query.node_budget,
                "max_depth": query.max_depth,
                "min_match": query.min_match,
                "max_match": query.max_match,
                "tenant": query.tenant,
                "live_generation": query.live_generation,
            },
        )
    )


def decode_asked(payload: bytes) -> tuple[str, RetrievalQuery]:
    """The traceparent and the query. As Decoder(RetrieveQuestion): raises InvalidArgument for what is none."""
    try:
        traceparent, listed = _LISTED.decode(payload)
    except msgspec.MsgspecError:
        # Long suffixes travel as bytes; and what is wrong with others is said there.
        question = _decode(payload)
        return question.traceparent, question.query
    return traceparent, RetrievalQuery(
        listed.index,
        listed.release,
        np.array(listed.suffix, np.int64),
        listed.node_budget,
        listed.max_depth,
        listed.min_match,
        listed.max_match,
        listed.tenant,
        listed.live_generation,
    )


class _Listed(msgspec.Struct, frozen=True):
    """The fields of a RetrievalQuery, its suffix short enough to travel as numbers."""

    index: str
    release: str
    suffix: list[_Int64]
    node_budget: int
    max_depth: int
    min_match: int
    max_match: int
    tenant: str
    live_generation: int


_LISTED = msgspec.msgpack.Decoder(tuple[str, _Listed])
