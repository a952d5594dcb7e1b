"""A segment: the tokens of some documents, their forward suffix array and the document boundaries, immutable.

Layout. The documents stand one after the other, each closed by the code 0, and every token is a code of at least 1, so
the codes carry the boundaries and compare like the token ids do. Code 0 stops every comparison, and it sorts before all
tokens: within the interval of any pattern, occurrences at a document's end come first. A walk that skips code 0 can
therefore never leave its document. The suffixes that start *at* a boundary sort first of all and are left out of the
stored array, so a boundary costs one code and no offset.

Codes are `id + 1` where that fits; otherwise ranks (+ 1) in the segment's own sorted alphabet, which keeps 16-bit codes
for up to 65,535 distinct ids of any size. Offsets are 32-bit, with one further byte each where the segment is longer
than 2^32 codes (so up to 2^40).

Suffix array: libdivsufsort by way of pydivsufsort (Y. Mori; "Dismantling DivSufSort", Fischer and Kurpicz 2017).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydivsufsort import divsufsort

from contracts.errors import InvalidArgument
from retriever.shares import Shares, shares_of
from retriever.signposts import Signposts, signposts_of
from retriever.trie import MAX_TOKEN_ID

MAX_POSITIONS = 2**40

CodeArray = NDArray[np.uint16] | NDArray[np.uint32]


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """One immutable, searchable piece of a release. All arrays are read-only; they may be memory maps.

    codes: uint16 or uint32 [P], P = tokens + documents; 0 closes a document.
    alphabet: uint32 [K], sorted ids whose code is their rank + 1; empty where the code is id + 1.
    offsets_low: uint32 [N], N = tokens: low words of the suffix array over `codes`, boundary suffixes left out.
    offsets_high: uint8 [N], bits 32-39 of the same; empty where P <= 2^32.
    max_token: largest id present, -1 for an empty segment.
    documents: number of non-empty documents.
    signposts, shares: see `signposts.py` and `shares.py`; none for a small segment.
    """

    codes: CodeArray
    alphabet: NDArray[np.uint32]
    offsets_low: NDArray[np.uint32]
    offsets_high: NDArray[np.uint8]
    max_token: int
    documents: int
    signposts: Signposts | None = None
    shares: Shares | None = None

    @property
    def tokens(self) -> int:
        """Tokens held, boundaries not counted."""
        return int(self.offsets_low.shape[0])

    @property
    def resident_bytes(self) -> int:
        """Bytes of all arrays: what a query may touch."""
        extra = (self.signposts.codes.nbytes if self.signposts else 0) + (self.shares.nbytes if self.shares else 0)
        return extra + sum(a.nbytes for a in (self.codes, self.alphabet, self.offsets_low, self.offsets_high))

    def token_documents(self) -> list[NDArray[np.uint32]]:
        """The documents again, in their order: uint32 [length] each."""
        ids = decode(np.asarray(self.codes), self.alphabet)
        ends = np.flatnonzero(np.asarray(self.codes) == 0)
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1]) if ends.size else ends
        return [ids[start:end] for start, end in zip(starts, ends, strict=True)]


def decode(codes: NDArray[np.generic], alphabet: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Token ids uint32 [P] of codes [P]; the value at a boundary is meaningless."""
    index = codes.astype(np.int64) - 1
    if alphabet.size == 0:
        return index.astype(np.uint32)
    decoded: NDArray[np.uint32] = alphabet[index]
    return decoded


def segment_from_documents(documents: Iterable[Sequence[int] | ArrayLike], *, wide_offsets: bool = False) -> Segment:
    """Index the documents (token ids each) in their order. Empty documents hold nothing and are dropped.

    wide_offsets: store the fifth offset byte even where four suffice.
    Raises InvalidArgument for an id outside [0, 2^32) or a segment of more than 2^40 codes.
    """
    kept = [ids for ids in map(_token_ids, documents) if ids.size]
    positions = sum(ids.size + 1 for ids in kept)
    if positions > MAX_POSITIONS:
        raise InvalidArgument("documents", f"{positions} codes in one segment, at most {MAX_POSITIONS}")
    max_token = max((int(ids.max()) for ids in kept), default=-1)
    alphabet = _alphabet(kept, max_token)
    highest = max_token + 1 if alphabet.size == 0 else alphabet.size
    codes: CodeArray = np.zeros(positions, np.uint16) if highest < 2**16 else np.zeros(positions, np.uint32)
    at = 0
    for ids in kept:
        ranks = ids if alphabet.size == 0 else np.searchsorted(alphabet, ids).astype(np.uint32)
        codes[at : at + ids.size] = ranks.astype(np.int64) + 1
        at += ids.size + 1
    low, high = _suffix_array(codes, len(kept), wide_offsets)
    for array in (codes, alphabet, low, high):
        array.flags.writeable = False
    searched = codes, low, high
    return Segment(codes, alphabet, low, high, max_token, len(kept), signposts_of(*searched), shares_of(*searched))


def _token_ids(document: Sequence[int] | ArrayLike) -> NDArray[np.uint32]:
    ids = np.asarray(document)
    if ids.ndim != 1:
        raise InvalidArgument("documents", f"a document is one row of token ids, not of shape {ids.shape}")
    if ids.size == 0:
        return np.empty(0, np.uint32)
    if ids.dtype.kind not in "iu":
        raise InvalidArgument("documents", f"token ids are integers, not {ids.dtype}")
    if int(ids.min()) < 0 or int(ids.max()) > MAX_TOKEN_ID:
        raise InvalidArgument("documents", f"token ids lie in [0, {MAX_TOKEN_ID}]")
    return ids.astype(np.uint32)


def _alphabet(documents: list[NDArray[np.uint32]], max_token: int) -> NDArray[np.uint32]:
    """The sorted distinct ids where ranking them makes the codes narrower (or makes them fit at all), else nothing."""
    empty = np.empty(0, np.uint32)
    if max_token + 1 < 2**16:
        return empty
    distinct = empty
    for ids in documents:
        distinct = np.union1d(distinct, ids)
    return distinct if distinct.size < 2**16 or max_token + 1 >= 2**32 else empty


def _suffix_array(codes: CodeArray, documents: int, wide: bool) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
    none = np.empty(0, np.uint8)
    if codes.size == 0:
        return np.empty(0, np.uint32), none
    # The boundary suffixes are the first `documents` entries: code 0 is the smallest.
    order = divsufsort(codes)[documents:]
    low = order.astype(np.uint32)
    return low, (order.astype(np.int64) >> 32).astype(np.uint8) if wide or codes.size > 2**32 else none
