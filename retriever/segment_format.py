"""A segment as bytes: magic, length of the header, canonical JSON header, then the arrays, each on a 64-byte boundary.

    0   8 bytes   b"DPSEG001"
    8   uint32 LE length of the header in bytes
    12  header    {"arrays": [{"name", "dtype", "length", "offset", "sha256"}], "byte_order": "little", ...}
    ..  arrays    raw, little-endian, zero padding between

The digest of a segment is the sha256 of all its bytes, and it is its only name. The bytes are a function of the
documents alone, so whoever builds a segment from the same documents gets the same digest.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from contracts.errors import DataLoss, FailedPrecondition
from retriever.segment import Segment, segment_from_documents
from retriever.shares import shares_of
from retriever.signposts import signposts_of
from retriever.trie import MAX_TOKEN_ID

MAGIC = b"DPSEG001"
ALIGNMENT = 64
MAX_HEADER_BYTES = 1 << 20
ARRAYS = {
    "codes": ("<u2", "<u4"),
    "alphabet": ("<u4",),
    "offsets_low": ("<u4",),
    "offsets_high": ("|u1",),
}


def build_segment(documents: Iterable[Sequence[int] | ArrayLike]) -> bytes:
    """The bytes of the segment that indexes these documents (token ids each): a pure function of them."""
    return segment_bytes(segment_from_documents(documents))


def segment_digest(data: bytes | NDArray[np.uint8]) -> str:
    """The content address: sha256 of all bytes, hexadecimal."""
    return _sha256(np.frombuffer(data, np.uint8))


def segment_bytes(segment: Segment) -> bytes:
    """Serialise; equal segments give equal bytes."""
    arrays = {name: _little(getattr(segment, name)) for name in ARRAYS}
    described: list[dict[str, Any]] = []
    size = 0
    for name, array in arrays.items():
        described.append(
            {
                "name": name,
                "dtype": array.dtype.str,
                "length": int(array.size),
                "offset": size,
                "sha256": _sha256(array),
            }
        )
        size = _aligned(size + array.nbytes)
    header = json.dumps(
        {
            "arrays": described,
            "byte_order": "little",
            "documents": segment.documents,
            "max_token": segment.max_token,
            "tokens": segment.tokens,
        },
        sort_keys=True,
        separators=(",", ":"),
    ).encode()
    base = _aligned(12 + len(header))
    data = bytearray(base + size)
    data[:12] = MAGIC + struct.pack("<I", len(header))
    data[12 : 12 + len(header)] = header
    for entry, array in zip(described, arrays.values(), strict=True):
        begin = base + entry["offset"]
        np.frombuffer(data, np.uint8)[begin : begin + array.nbytes] = array.view(np.uint8)
    return bytes(data)


def segment_from_bytes(data: bytes | NDArray[np.uint8], *, verify: bool = True) -> Segment:
    """The segment in these bytes; its arrays are read-only views of them (nothing is copied).

    verify: check each array's sha256 and the structure (needless where the whole digest was just checked).
    Raises DataLoss for bytes that are cut, changed or no segment; FailedPrecondition for another byte order or width.
    """
    view = np.frombuffer(data, np.uint8)
    header, base = _header(view)
    arrays: dict[str, NDArray[Any]] = {}
    for name, dtypes in ARRAYS.items():
        entry = _entry(header, name)
        dtype = entry.get("dtype")
        if dtype not in dtypes:
            raise FailedPrecondition(f"segment.{name}.dtype", f"{dtype!r} is none of {', '.join(dtypes)}")
        begin, length = base + _count(entry, "offset"), _count(entry, "length")
        raw = view[begin : begin + length * np.dtype(dtype).itemsize]
        if raw.size != length * np.dtype(dtype).itemsize:
            raise DataLoss(f"segment.{name}", f"cut short: {raw.size} bytes of {length} x {dtype}")
        if verify and _sha256(raw) != entry.get("sha256"):
            raise DataLoss(f"segment.{name}", "its bytes do not have the header's sha256")
        arrays[name] = raw.view(dtype)
        arrays[name].flags.writeable = False
    segment = Segment(
        codes=arrays["codes"],
        alphabet=arrays["alphabet"],
        offsets_low=arrays["offsets_low"],
        offsets_high=arrays["offsets_high"],
        max_token=_count(header, "max_token", least=-1),
        documents=_count(header, "documents"),
    )
    _check(segment, header, verify)
    searched = segment.codes, segment.offsets_low, segment.offsets_high
    return replace(segment, signposts=signposts_of(*searched), shares=shares_of(*searched))


def _check(segment: Segment, header: Mapping[str, Any], verify: bool) -> None:
    """The compiled search trusts these relations, so a segment that breaks one must not get that far."""
    positions = segment.codes.shape[0]
    if (
        segment.tokens != _count(header, "tokens")
        or segment.tokens + segment.documents != positions
        or segment.offsets_high.shape[0] not in (0, segment.tokens)
        or (positions > 2**32 and segment.offsets_high.shape[0] == 0)
        or segment.max_token > MAX_TOKEN_ID
        or (positions > 0 and int(segment.codes[-1]) != 0)
    ):
        raise DataLoss("segment", "its arrays and its header contradict one another")
    if not verify or segment.tokens == 0:
        return
    if segment.offsets_high.shape[0]:
        top = int((segment.offsets_low | (segment.offsets_high.astype(np.int64) << 32)).max())
    else:
        top = int(segment.offsets_low.max())
    highest = segment.alphabet.shape[0] if segment.alphabet.shape[0] else segment.max_token + 1
    if top >= positions or int(segment.codes.max()) > highest:
        raise DataLoss("segment", "an offset or a code points outside its array")


def _sha256(array: NDArray[Any]) -> str:
    return hashlib.sha256(array.data).hexdigest() if array.size else hashlib.sha256().hexdigest()


def _little(array: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _header(view: NDArray[np.uint8]) -> tuple[Mapping[str, Any], int]:
    if view[:8].tobytes() != MAGIC:
        raise DataLoss("segment.magic", f"{view[:8].tobytes()!r} is not {MAGIC!r}: no segment of this version")
    if view.size < 12:
        raise DataLoss("segment.header", "cut short")
    (length,) = struct.unpack("<I", view[8:12].tobytes())
    raw = view[12 : 12 + length].tobytes()
    if length > MAX_HEADER_BYTES or len(raw) != length:
        raise DataLoss("segment.header", f"{len(raw)} bytes of {length}")
    try:
        header = json.loads(raw)
    except ValueError as error:
        raise DataLoss("segment.header", f"is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise DataLoss("segment.header", "is not a JSON object")
    if header.get("byte_order") != "little":
        raise FailedPrecondition("segment.byte_order", f"{header.get('byte_order')!r}, expected 'little'")
    return header, _aligned(12 + length)


def _entry(header: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    arrays = header.get("arrays")
    for entry in arrays if isinstance(arrays, list) else []:
        if isinstance(entry, dict) and entry.get("name") == name:
            return entry
    raise DataLoss(f"segment.{name}", "missing")


def _count(record: Mapping[str, Any], key: str, *, least: int = 0) -> int:
    value = record.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise DataLoss(f"segment.{key}", f"{value!r} is no count")
    return value
