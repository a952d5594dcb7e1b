"""Label alignment and ownership, against the row-by-row definitions of M7.2 (0x02F, 0x05A, 0x05E) and M7.7 (0x06B)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proposer.training.labels import Stream, label_rows, labels_at


def stream_of(lengths: list[int], owned: list[bool], valid: list[bool]) -> Stream:
    total = sum(lengths)
    segments = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths, dtype=torch.int64))
    return Stream(torch.arange(100, 100 + total), segments, torch.tensor(owned), torch.tensor(valid))


def batch(rows: int, length: int) -> Stream:
    return stream_of([length] * rows, [True] * rows * length, [True] * rows * length)


def test_geometric_counts_are_those_of_m72() -> None:
    """N_j = B max(S - j - 2, 0) for S = 7, K = 3, and for every head of a longer batch."""
    assert [len(label_rows(batch(1, 7), j + 2)) for j in range(3)] == [5, 4, 3]
    for j in range(10):
        assert len(label_rows(batch(2, 8), j + 2)) == 2 * max(8 - j - 2, 0)


def test_assistant_mask_is_shifted_with_the_label() -> None:
    """B = 2, S = 8, three heads: owned where the shifted label is, whatever the row's own mask says."""
    owned = [False] * 3 + [True] * 5 + [False] * 6 + [True] * 2
    stream = stream_of([8, 8], owned, [True] * 16)
    for j in range(3):
        shift = j + 2
        by_hand = [start + t for start in (0, 8) for t in range(8 - shift) if owned[start + t + shift]]
        assert label_rows(stream, shift).tolist() == by_hand
        assert labels_at(stream, label_rows(stream, shift), shift).tolist() == [100 + t + shift for t in by_hand]
    assert [len(label_rows(stream, j + 2)) for j in range(3)] == [7, 7, 6]


def test_a_head_without_labels_has_no_rows() -> None:
    assert len(label_rows(batch(3, 4), 4)) == 0
    assert len(label_rows(batch(3, 2), 2)) == 0
    assert len(label_rows(stream_of([6], [False] * 6, [True] * 6), 2)) == 0


def test_offset_below_one_and_unequal_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="offset"):
        label_rows(batch(1, 4), 0)
    with pytest.raises(ValueError, match="one length"):
        Stream(torch.zeros(3), torch.zeros(3), torch.zeros(2), torch.zeros(3))


def hydra_rows_by_definition(
    tokens: list[int], segments: list[int], valid: list[bool], max_future: int
) -> list[tuple[int, int, list[int], int]]:
    """(head i, predecessor row, conditioning tokens, label), one (t, i) at a time as M7.7's definition reads."""
    rows = []
    count = len(tokens)
    for t in range(1, count):
        for i in range(1, min(max_future, count - t - 1) + 1):
            span = range(t - 1, t + i + 1)
            if all(segments[k] == segments[t] for k in span) and valid[t - 1]:
                rows.append((i, t - 1, tokens[t : t + i], tokens[t + i]))
    return rows


@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    max_future=st.integers(0, 4),
    data=st.data(),
)
def test_packed_streams_match_m77s_definition(lengths: list[int], max_future: int, data: st.DataObject) -> None:
    """No row wraps around, none borrows a neighbour's row, and a row that was never run conditions nothing."""
    total = sum(lengths)
    valid = data.draw(st.lists(st.booleans(), min_size=total, max_size=total))
    stream = stream_of(lengths, [True] * total, valid)
    wanted = hydra_rows_by_definition(stream.tokens.tolist(), stream.segments.tolist(), valid, max_future)
    found = []
    for i in range(1, max_future + 1):
        rows = label_rows(stream, i + 1)
        labels = labels_at(stream, rows, i + 1).tolist()
        found += [
            (i, row, stream.tokens[row + 1 : row + 1 + i].tolist(), label)
            for row, label in zip(rows.tolist(), labels, strict=True)
        ]
    assert sorted(found) == sorted(wanted)


@given(length=st.integers(1, 12), i=st.integers(1, 6))
def test_a_segment_of_length_l_has_l_minus_i_minus_one_rows(length: int, i: int) -> None:
    assert len(label_rows(batch(1, length), i + 1)) == max(length - i - 1, 0)


def test_offset_one_training_would_be_noticed() -> None:
    """The usual mistake, labels of the target's own next token, differs from every head's in every row."""
    stream = batch(2, 8)
    rows = label_rows(stream, 2)
    assert (labels_at(stream, rows, 2) != labels_at(stream, rows, 1)).all()
    assert all(a < b for a, b in pairwise(rows.tolist()))
    assert np.all(stream.segments[rows].numpy() == stream.segments[rows + 2].numpy())
