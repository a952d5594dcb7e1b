"""A retrieval over a link is the one that was sent, whether it comes as numbers or as arrays."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import InvalidArgument
from contracts.retrieval import Retrieval
from orchestrator.retrieval_source import to_proposal
from services.link.codec import Decoder, encode
from services.link.found import _Listed, decode_found

whole = st.integers(-(2**63), 2**63 - 1)


@st.composite
def retrievals(draw: st.DrawFn) -> Retrieval:
    count = draw(st.sampled_from([0, 1, 5, 64, 65]))
    columns = [np.array(draw(st.lists(whole, min_size=count, max_size=count)), np.int64) for _ in range(4)]
    return Retrieval(draw(whole), draw(whole), *columns, draw(st.booleans()), 7.5, "release", 3, draw(st.booleans()))


@given(retrievals())
def test_it_says_what_was_sent(sent: Retrieval) -> None:
    got, plain = decode_found(encode(sent)), Decoder(Retrieval)(encode(sent))
    assert got.columns == plain.columns == sent.columns
    for name in (one.name for one in fields(Retrieval)):
        np.testing.assert_array_equal(getattr(got, name), getattr(sent, name))
    assert got.same_as(sent)
    assert (got.miss, got.nodes) == (sent.miss, sent.nodes)
    for column in (got.tokens, got.parents, got.depths, got.counts):
        assert column.dtype == np.int64
        assert column.flags.writeable
    assert replace(got, release="other").columns == sent.columns
    assert encode(got) == encode(sent)


@given(retrievals())
def test_the_offer_made_of_it_is_that_made_of_the_arrays(sent: Retrieval) -> None:
    made = [to_proposal("retrieval", answer, round_hash="r") for answer in (sent, decode_found(encode(sent)))]
    assert made[0] == made[1]


def test_its_fields_are_those_of_a_retrieval() -> None:
    assert list(_Listed.__struct_fields__) == [one.name for one in fields(Retrieval)]


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": [1.5]},
        {"tokens": [2**63]},
        {"tokens": "abc"},
        {"counts": [[1], [2]]},
        {"depths": [[3], b"123"]},
        {"match_length": "x"},
        {"truncated": 1},
    ],
)
def test_what_is_no_retrieval_is_refused(change: dict[str, Any]) -> None:
    sent = {one.name: getattr(Retrieval(), one.name) for one in fields(Retrieval)}
    with pytest.raises(InvalidArgument, match="Retrieval"):
        decode_found(encode({**sent, **change}))


def test_what_is_left_out_has_its_default() -> None:
    assert decode_found(encode({"match_length": 2})).same_as(Retrieval(match_length=2))
