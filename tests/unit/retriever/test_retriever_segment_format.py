"""A segment's bytes: deterministic, checked, and refused when they are not what they say."""

from __future__ import annotations

import dataclasses
import json
import struct

import numpy as np
import pytest

from contracts.errors import DataLoss, DraftproofError, FailedPrecondition
from retriever.segment import segment_from_documents
from retriever.segment_format import build_segment, segment_bytes, segment_from_bytes
from tests.unit.retriever.corpora import TRACE


def with_header(data: bytes, **changes: object) -> bytes:
    """The segment's bytes with header fields replaced, at the same length."""
    (length,) = struct.unpack("<I", data[8:12])
    header = {**json.loads(data[12 : 12 + length]), **changes}
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    assert len(text) <= (12 + length + 63) // 64 * 64 - 12
    return data[:8] + struct.pack("<I", length) + text.ljust(length) + data[12 + length :]


def test_equal_documents_give_equal_bytes() -> None:
    assert build_segment([TRACE, [1, 2]]) == build_segment([np.array(TRACE, np.uint16), np.array([1, 2])])


@pytest.mark.parametrize("documents", [[], [[5]], [TRACE, [2**32 - 1, 0]], [[3] * 70]])
@pytest.mark.parametrize("wide", [False, True])
def test_a_segment_survives_its_bytes(documents: list[list[int]], wide: bool) -> None:
    segment = segment_from_documents(documents, wide_offsets=wide)
    read = segment_from_bytes(segment_bytes(segment))
    for name in ("codes", "alphabet", "offsets_low", "offsets_high"):
        assert getattr(read, name).tolist() == getattr(segment, name).tolist()
    assert (read.max_token, read.documents) == (segment.max_token, segment.documents)


def test_bytes_cut_anywhere_are_data_loss() -> None:
    data = build_segment([TRACE])
    last = len(data.rstrip(b"\0"))
    for size in range(0, last, 3):
        with pytest.raises(DataLoss):
            segment_from_bytes(data[:size])


def test_a_changed_byte_in_an_array_is_data_loss() -> None:
    data = bytearray(build_segment([TRACE]))
    (length,) = struct.unpack("<I", data[8:12])
    data[(12 + length + 63) // 64 * 64] ^= 1
    with pytest.raises(DataLoss, match=r"segment\.codes"):
        segment_from_bytes(bytes(data))


def test_no_changed_byte_of_the_header_is_believed() -> None:
    data = build_segment([TRACE])
    (length,) = struct.unpack("<I", data[8:12])
    whole = segment_from_bytes(data)
    for at in range(12 + length):
        changed = bytearray(data)
        changed[at] ^= 4
        try:
            read = segment_from_bytes(bytes(changed))
        except DraftproofError:
            continue
        # What still reads may differ in an unchecked count only, never in what is searched.
        assert read.codes.tolist() == whole.codes.tolist()
        assert read.offsets_low.tolist() == whole.offsets_low.tolist()


def test_another_byte_order_is_refused_by_name() -> None:
    data = build_segment([TRACE]).replace(b'"byte_order":"little"', b'"byte_order":"big"   ')
    with pytest.raises(FailedPrecondition, match=r"segment\.byte_order"):
        segment_from_bytes(data)
    swapped = build_segment([TRACE]).replace(b'"dtype":"<u2"', b'"dtype":">u2"')
    with pytest.raises(FailedPrecondition, match=r"segment\.codes\.dtype"):
        segment_from_bytes(swapped)


def test_header_and_arrays_must_agree() -> None:
    with pytest.raises(DataLoss, match="contradict"):
        segment_from_bytes(with_header(build_segment([TRACE]), tokens=8))
    with pytest.raises(DataLoss, match="outside its array"):
        segment_from_bytes(with_header(build_segment([TRACE]), max_token=9))


def test_an_offset_beyond_the_codes_is_data_loss_even_under_a_right_checksum() -> None:
    for wide in (False, True):
        good = segment_from_documents([TRACE], wide_offsets=wide)
        bad = dataclasses.replace(good, offsets_low=good.offsets_low + np.uint32(4))
        with pytest.raises(DataLoss, match="outside its array"):
            segment_from_bytes(segment_bytes(bad))
