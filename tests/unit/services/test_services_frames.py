"""Frames survive however the byte stream is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import DataLoss
from services.link.frames import Kind, Splitter, frame

frames = st.lists(st.tuples(st.sampled_from(Kind), st.integers(0, 2**64 - 1), st.binary(max_size=40)), max_size=8)


@given(frames, st.lists(st.integers(1, 30), min_size=1, max_size=40))
def test_any_cut_gives_the_same_frames(sent: list[tuple[Kind, int, bytes]], cuts: list[int]) -> None:
    stream = b"".join(frame(*item) for item in sent)
    splitter, got, at = Splitter(), [], 0
    while at < len(stream):
        size = cuts[len(got) % len(cuts)]
        got.extend(splitter.feed(stream[at : at + size]))
        at += size
    assert got == sent


def test_a_length_past_all_limits_is_no_frame() -> None:
    with pytest.raises(DataLoss):
        list(Splitter().feed(b"\xff" * 13))
