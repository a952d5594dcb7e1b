"""Records over a link: they come back equal, and what is none is refused."""

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import InvalidArgument
from contracts.manifest import RoundManifest
from contracts.payload import payload_digest
from contracts.ports import VerifyRequest
from contracts.proposal import Proposal
from contracts.receipt import Receipt
from contracts.retrieval import Retrieval, RetrievalQuery
from services.link.address import socket_path
from services.link.codec import FORMAT, Decoder, ProposeQuestion, RetrieveQuestion, VerifyQuestion, encode, encode_found
from tests.unit.services import strategies as some

ROUND = RoundManifest("m", "s", 0, 1, "f", 0, ())
QUERY = RetrieveQuestion("", RetrievalQuery("index", "release", np.array([3, 4]), 8, 4))


def through(record: Any) -> Any:
    return Decoder(type(record))(encode(record))


@given(some.receipts)
def test_receipts(sent: Receipt) -> None:
    assert through(sent) == sent


@given(some.proposals())
def test_proposals(sent: Proposal) -> None:
    assert through(sent) == sent


@given(some.graphs(), some.round_manifests)
def test_verify_questions(graph: Any, manifest: Any) -> None:
    sent = VerifyQuestion("trace", VerifyRequest(manifest, graph, payload_digest(manifest, graph), 3))
    got = through(sent)
    assert (got.traceparent, got.request.manifest, got.request.acknowledge) == ("trace", manifest, 3)
    # The digest covers rows, draws, laws and kinds; names of rows' sources stand beside it.
    assert payload_digest(got.request.manifest, got.request.graph) == sent.request.payload_digest
    assert got.request.graph.sources == graph.sources


@given(some.round_manifests, st.none() | some.policies, st.none() | some.hidden_rows())
def test_propose_questions(manifest: Any, policy: Any, hidden: Any) -> None:
    sent = ProposeQuestion("", "x", manifest, policy, 2, np.array([7, 2**31]), 8, 4, {"branches": 2}, hidden)
    got = through(sent)
    assert (got.manifest, got.policy, got.base_len, got.options) == (manifest, policy, 2, {"branches": 2})
    assert got.tokens.tolist() == [7, 2**31]
    assert got.hidden == hidden


def test_retrievals() -> None:
    sent = Retrieval(3, 9, *(np.array(column) for column in ([5, 6], [-1, 0], [1, 2], [4, 2**40])), truncated=True)
    assert through(sent).same_as(sent)
    assert through(QUERY).query.suffix.tolist() == [3, 4]


@pytest.mark.parametrize("length", [0, 1, 64, 65])
@pytest.mark.parametrize("odd", ["int64", ">i8", "int32"])
def test_what_was_found_is_sent_byte_for_byte_as_any_record(length: int, odd: str) -> None:
    column = np.arange(length) * 2**28
    found = Retrieval(3, 9, column, column - 1, column[::-1], column.astype(odd), True, 41.5, "r", 7, False)
    assert encode_found(found) == encode(found)
    assert encode_found(Retrieval()) == encode(Retrieval())


@pytest.mark.parametrize("length", [0, 1, 64, 65])
def test_arrays_of_any_length_come_back(length: int) -> None:
    sent = RetrieveQuestion("", replace(QUERY.query, suffix=np.arange(length) - 2**40))
    got = through(sent).query.suffix
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got, sent.query.suffix)


def test_arrays_arrive_as_arrays_of_their_type_that_may_be_written_to() -> None:
    suffix = through(QUERY).query.suffix
    assert suffix.dtype == np.int64
    suffix[0] = 9


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        encode(QUERY)[:-3],
        b"\xc1",
        encode(("", {"index": 1})),
        encode(("", {"index": "i", "release": "r", "suffix": [[3], b"123"], "node_budget": 1, "max_depth": 1})),
        encode(("", {"index": "i", "release": "r", "suffix": [[9], b"12345678"], "node_budget": 1, "max_depth": 1})),
        encode(("", {"index": "i", "release": "r", "suffix": "abc", "node_budget": 1, "max_depth": 1})),
        encode(("", {"index": "i", "release": "r", "suffix": [1.5], "node_budget": 1, "max_depth": 1})),
        encode(("", {"index": "i", "release": "r", "suffix": [2**63], "node_budget": 1, "max_depth": 1})),
        encode(("", {"index": "i", "release": "r", "suffix": [[1], [2]], "node_budget": 1, "max_depth": 1})),
        encode(("", {"index": "i", "release": "r", "suffix": 7, "node_budget": 1, "max_depth": 1})),
    ],
)
def test_what_is_no_record_is_refused(payload: bytes) -> None:
    with pytest.raises(InvalidArgument, match="RetrieveQuestion"):
        Decoder(RetrieveQuestion)(payload)


def test_what_a_record_refuses_of_itself_is_refused_on_arrival() -> None:
    ragged = {"start": 0, "taps": {"a": [[2, 1], bytes(8)], "b": [[1, 1], bytes(4)]}}
    with pytest.raises(InvalidArgument):
        Decoder(ProposeQuestion)(encode(("", "x", ROUND, None, 0, np.zeros(0, np.int64), 1, 1, {}, ragged)))


@pytest.mark.parametrize("change", [{"node_budget": 2**70}, {"tenant": "\ud800"}])
def test_what_cannot_be_sent_is_refused_before_it_is(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        encode(RetrieveQuestion("", replace(QUERY.query, **change)))


def test_processes_of_one_build_agree_on_the_format_and_it_is_in_the_sockets_name(tmp_path: Any) -> None:
    script = "from services.link.codec import FORMAT; print(FORMAT)"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    other = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == FORMAT
    assert FORMAT in socket_path(tmp_path, "verifier", 7600).name
