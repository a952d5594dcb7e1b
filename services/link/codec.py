"""What links carry: the contracts' own records as MessagePack, put together and taken apart by msgspec.

Building protobuf messages field by field was a third of a round's cost outside the target (docs/decisions/0009). Types are
checked on arrival; what a record means is checked by whoever acts on it, as for calls inside one process. Both ends must
have been built from the same records: FORMAT names them, and a socket's name holds it.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import is_dataclass
from enum import Enum
from typing import Any, Generic, TypeVar, get_args, get_type_hints

import msgspec
import numpy as np
import numpy.typing as npt

from contracts.errors import InvalidArgument
from contracts.hidden import HiddenRows
from contracts.manifest import RoundManifest
from contracts.ports import VerifyRequest
from contracts.proposal import Proposal
from contracts.receipt import Receipt
from contracts.retrieval import Retrieval, RetrievalQuery
from contracts.sampling import SamplingPolicy

T = TypeVar("T")
# Up to so many whole numbers travel as such: numpy's fixed cost a call, cold, is more than that of reading them.
_FEW = 64
_INT64 = np.dtype(np.int64)
# By the identity of an annotation, which its decoder keeps and so does this: its hash is that of all its parts.
_DTYPES: dict[int, tuple[Any, np.dtype[Any]]] = {}
_LITTLE_ENDIAN = sys.byteorder == "little"
_NOTHING: npt.NDArray[np.int64] = np.zeros(0, _INT64)


class VerifyQuestion(msgspec.Struct, array_like=True, frozen=True):
    """One Verify call. traceparent: the caller's span, empty for none."""

    traceparent: str
    request: VerifyRequest


class ProposeQuestion(msgspec.Struct, array_like=True, frozen=True):
    """One Propose call: `tokens` int64 [n] follow the first `base_len` of the prefix that the connection last carried for
    this session; policy None: the one last carried.
    """

    traceparent: str
    source: str
    manifest: RoundManifest
    policy: SamplingPolicy | None
    base_len: int
    tokens: npt.NDArray[np.int64]
    node_budget: int
    max_depth: int
    options: Mapping[str, int]
    hidden: HiddenRows | None


class RetrieveQuestion(msgspec.Struct, array_like=True, frozen=True):
    """One Retrieve call."""

    traceparent: str
    query: RetrievalQuery


def encode(record: Any) -> bytes:
    """A record's bytes. Raises InvalidArgument for numbers past 64 bits and text that is no Unicode."""
    try:
        return _ENCODER.encode(record)
    except (OverflowError, UnicodeEncodeError) as error:
        raise InvalidArgument("", f"{type(record).__name__} cannot be sent: {error}") from error


class Decoder(Generic[T]):
    """Takes records of one type apart."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._decoder = msgspec.msgpack.Decoder(kind, dec_hook=_array)

    def __call__(self, payload: bytes) -> T:
        """Raises InvalidArgument naming the place for what is no such record, and what the record itself refuses."""
        try:
            return self._decoder.decode(payload)
        except msgspec.MsgspecError as error:
            raise InvalidArgument("", f"no {self._kind.__name__}: {error}") from error


def encode_found(found: Retrieval) -> bytes:
    """As `encode`, byte for byte: its rows are numbers before the encoder has to ask what each of them is."""
    tokens, parents, depths, counts = found.tokens, found.parents, found.depths, found.counts
    if not (few(tokens) and few(parents) and few(depths) and few(counts)):
        return encode(found)
    return encode(
        {
            "match_length": found.match_length,
            "match_count": found.match_count,
            "tokens": tokens.tolist(),
            "parents": parents.tolist(),
            "depths": depths.tolist(),
            "counts": counts.tolist(),
            "truncated": found.truncated,
            "compute_us": found.compute_us,
            "release": found.release,
            "live_generation": found.live_generation,
            "live_gone": found.live_gone,
        }
    )


def few(value: npt.NDArray[Any]) -> bool:
    """Whether an array travels as plain numbers."""
    # Of numpy's types there is one object each, but for other byte orders.
    return value.dtype is _INT64 and value.ndim == 1 and len(value) <= _FEW


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if few(value):
            return value.tolist()
        if _LITTLE_ENDIAN and value.dtype.isnative and value.flags.c_contiguous:
            return value.shape, value.data
        return value.shape, np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<")).tobytes()
    raise NotImplementedError(f"{type(value).__name__} travels over no link")


def _array(kind: Any, value: Any) -> npt.NDArray[Any]:
    if len(value) != 2 or type(value[1]) is not bytes:
        made = np.array(value) if value else _NOTHING
        if made.dtype is not _INT64 or made.ndim != 1 or _dtype(kind) is not _INT64:
            raise ValueError("no array, and no list of whole numbers of 64 bits")
        return made
    # A copy: what is read from a message cannot be written to, and kernels are compiled for arrays that can.
    shape, data = value
    return np.frombuffer(data, dtype=_dtype(kind)).reshape(shape).copy()


def _dtype(kind: Any) -> np.dtype[Any]:
    """Of npt.NDArray[scalar], the one object that numpy has for it where this machine's order is little-endian."""
    known = _DTYPES.get(id(kind))
    if known is None:
        (scalar,) = get_args(get_args(kind)[1])
        known = _DTYPES[id(kind)] = kind, np.dtype(np.dtype(scalar).newbyteorder("<").str)
    return known[1]


def _classes(kind: Any, seen: dict[type, str]) -> dict[type, str]:
    """The records and enumerations that a type is made of, each with its fields and their types, or its values."""
    for part in get_args(kind):
        _classes(part, seen)
    if not isinstance(kind, type) or kind in seen:
        return seen
    if issubclass(kind, Enum):
        seen[kind] = str([member.value for member in kind])
    elif is_dataclass(kind) or issubclass(kind, msgspec.Struct) or hasattr(kind, "_fields"):
        hints = get_type_hints(kind)
        seen[kind] = str(hints)
        for hint in hints.values():
            _classes(hint, seen)
    return seen


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain)
_RECORDS = tuple[VerifyQuestion, Receipt, ProposeQuestion, Proposal, RetrieveQuestion, Retrieval]

# How arrays travel is no part of the records.
_ARRAYS = f"int64 [<= {_FEW}] as numbers, others as shape and bytes"
FORMAT = hashlib.sha256(f"{_classes(_RECORDS, {})} {_ARRAYS}".encode()).hexdigest()[:8]
