"""In-memory fakes of every port, honest about commit, generation and idempotency, and scriptable where peers fail.

Any wrong acceptance, lost or doubled token shows in the text, because the toy target's law is a pure function of the prefix.
"""

from tests.helpers.fakes.sources import FakeProposer, FakeRetriever, TappedProposer, chain_of, lookup, oracle
from tests.helpers.fakes.target import BOS, EOS, VOCAB, FakeTokenizer, babble, collect, reciting
from tests.helpers.fakes.verifier import FakeVerifier, drop_session, fake_rows, lose_reply, wait_for

__all__ = [
    "BOS",
    "EOS",
    "VOCAB",
    "FakeProposer",
    "FakeRetriever",
    "FakeTokenizer",
    "FakeVerifier",
    "TappedProposer",
    "babble",
    "chain_of",
    "collect",
    "drop_session",
    "fake_rows",
    "lookup",
    "lose_reply",
    "oracle",
    "reciting",
    "wait_for",
]
