"""A query over a link is the one that was sent, and its bytes are those of any record."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from contracts.errors import InvalidArgument
from contracts.retrieval import RetrievalQuery
from services.link.asked import _Listed, decode_asked, encode_asked
from services.link.codec import Decoder, RetrieveQuestion, encode

QUERY = RetrievalQuery("index", "release", np.array([3, 4]), 8, 4, 2, 16, "tenant", 7)


@pytest.mark.parametrize("length", [0, 1, 64, 65])
@pytest.mark.parametrize("odd", ["int64", ">i8"])
def test_it_says_what_was_sent_in_the_bytes_of_any_record(length: int, odd: str) -> None:
    sent = replace(QUERY, suffix=(np.arange(length) * 2**40 - 5).astype(odd))
    payload = encode_asked("trace", sent)
    assert payload == encode(RetrieveQuestion("trace", sent))
    traceparent, got = decode_asked(payload)
    assert traceparent == "trace"
    assert got.suffix.dtype == np.int64
    assert got.suffix.flags.writeable
    assert got.suffix.tolist() == sent.suffix.tolist()
    assert replace(got, suffix=QUERY.suffix) == QUERY


def test_its_fields_are_those_of_a_query() -> None:
    assert list(_Listed.__struct_fields__) == [one.name for one in fields(RetrievalQuery)]


def test_what_is_left_out_has_its_default() -> None:
    least = {"index": "i", "release": "r", "suffix": [1], "node_budget": 1, "max_depth": 1}
    plain = Decoder(RetrieveQuestion)(encode(("", least))).query
    got = decode_asked(encode(("", least)))[1]
    assert replace(got, suffix=plain.suffix) == plain


@pytest.mark.parametrize(
    "change",
    [
        {"suffix": [1.5]},
        {"suffix": [2**63]},
        {"suffix": "abc"},
        {"suffix": [[1], [2]]},
        {"index": 1},
        {"max_depth": "x"},
    ],
)
def test_what_is_no_query_is_refused(change: dict[str, Any]) -> None:
    sent = {one.name: getattr(QUERY, one.name) for one in fields(RetrievalQuery)}
    with pytest.raises(InvalidArgument, match="RetrieveQuestion"):
        decode_asked(encode(("", {**sent, **change})))


@pytest.mark.parametrize("change", [{"node_budget": 2**70}, {"tenant": "\ud800"}])
def test_what_cannot_be_sent_is_refused_before_it_is(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        encode_asked("", replace(QUERY, **change))
