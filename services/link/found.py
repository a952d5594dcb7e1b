"""A retrieval as it arrives over a link: taken apart into plain numbers, which become arrays where somebody asks for those.

A round's offer is made of the numbers. Making four arrays of a dozen each, and numbers of them again, took as long as all
else about the message.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from contracts.retrieval import Retrieval
from services.link.codec import Decoder

Int64Array = npt.NDArray[np.int64]
_Int64 = Annotated[int, msgspec.Meta(le=2**63 - 1)]
_decode = Decoder(Retrieval)


def decode_found(payload: bytes) -> Retrieval:
    """As Decoder(Retrieval): raises InvalidArgument for what is none."""
    try:
        listed = _LISTED.decode(payload)
    except msgspec.MsgspecError:
        # Long columns travel as bytes; and what is wrong with others is said there.
        return _decode(payload)
    found = _Found.__new__(_Found)
    found.__dict__.update(
        match_length=listed.match_length,
        match_count=listed.match_count,
        columns=(listed.tokens, listed.parents, listed.depths, listed.counts),
        truncated=listed.truncated,
        compute_us=listed.compute_us,
        release=listed.release,
        live_generation=listed.live_generation,
        live_gone=listed.live_gone,
    )
    return found


class _Found(Retrieval):
    """A Retrieval that has its `columns` first."""

    @cached_property
    def tokens(self) -> Int64Array:
        return np.array(self.columns[0], dtype=np.int64)

    @cached_property
    def parents(self) -> Int64Array:
        return np.array(self.columns[1], dtype=np.int64)

    @cached_property
    def depths(self) -> Int64Array:
        return np.array(self.columns[2], dtype=np.int64)

    @cached_property
    def counts(self) -> Int64Array:
        return np.array(self.columns[3], dtype=np.int64)


class _Listed(msgspec.Struct, frozen=True):
    """The fields of a Retrieval, its columns short enough to travel as numbers."""

    match_length: int
    match_count: int
    tokens: list[_Int64]
    parents: list[_Int64]
    depths: list[_Int64]
    counts: list[_Int64]
    truncated: bool
    compute_us: float
    release: str
    live_generation: int
    live_gone: bool


_LISTED = msgspec.msgpack.Decoder(_Listed)
