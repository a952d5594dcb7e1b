"""The index finds what a scan over all sequences finds."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from verifier.prefix_index import PrefixIndex

tokens = st.lists(st.sampled_from([0, 1, 255, 256, 2**31]), max_size=6)


def ids(sequence: list[int]) -> np.ndarray:
    return np.array(sequence, np.int64)


def shared(left: list[int], right: list[int]) -> int:
    differ = [a != b for a, b in zip(left, right, strict=False)]
    return differ.index(True) if True in differ else len(differ)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(tokens, st.booleans()), max_size=12), tokens)
def test_the_longest_shared_starts_come_first_and_none_is_missed(
    known: list[tuple[list[int], bool]], wanted: list[int]
) -> None:
    index: PrefixIndex[int] = PrefixIndex()
    keys = [index.add(ids(sequence), number) for number, (sequence, _) in enumerate(known)]
    for key, (_, stays) in zip(keys, known, strict=True):
        if not stays:
            index.remove(key)
    found = list(index.nearest(ids(wanted)))
    assert [length for length, _ in found] == sorted((length for length, _ in found), reverse=True)
    scan = {(shared(sequence, wanted), number) for number, (sequence, stays) in enumerate(known) if stays}
    assert set(found) == {pair for pair in scan if pair[0]}
    assert len(index) == sum(stays for _, stays in known)


def test_equal_sequences_keep_their_holders_apart() -> None:
    index: PrefixIndex[str] = PrefixIndex()
    first, second = (index.add(ids([4, 5]), holder) for holder in ("first", "second"))
    index.remove(first)
    assert list(index.nearest(ids([4, 5, 6]))) == [(2, "second")]
    with pytest.raises(KeyError):
        index.remove(first)
    index.remove(second)
    assert not len(index)
