"""Releases: what an id binds, and what a retriever refuses."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from contracts.errors import DataLoss, FailedPrecondition, InvalidArgument
from retriever.release import Binding, Release, SegmentEntry, check_binding, release_from_bytes
from tests.unit.retriever.corpora import FIELDS, manifest


@pytest.mark.parametrize("field", [*FIELDS, "key_encoding", "byte_order", "counter_bits", "pruning", "tenants"])
def test_every_field_of_the_manifest_is_bound_by_the_id(field: str) -> None:
    plain = Release(manifest(), ())
    value = getattr(plain.manifest, field)
    other: Any = value + 1 if isinstance(value, int) else (*value, "x") if isinstance(value, tuple) else value + "x"
    assert Release(manifest(**{field: other}), ()).release_id != plain.release_id


def test_segments_and_their_order_are_bound_by_the_id() -> None:
    a, b = SegmentEntry("a", 1, 1), SegmentEntry("b", 1, 1)
    ids = {Release(manifest(), s).release_id for s in [(), (a,), (a, b), (b, a)]}
    assert len(ids) == 4


def test_a_release_survives_its_bytes() -> None:
    release = Release(manifest(tenants=("t",), licence_policy="näïve"), (SegmentEntry("a", 2, 3),))
    assert release_from_bytes(release.canonical_bytes(), release.release_id) == release


def test_bytes_under_another_name_are_data_loss() -> None:
    release = Release(manifest(), ())
    with pytest.raises(DataLoss, match="came under the name"):
        release_from_bytes(release.canonical_bytes() + b" ", release.release_id)


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"format":"draftproof.release/1","manifest":{"tenants":[]}}'])
def test_bytes_of_something_else_are_data_loss(data: bytes) -> None:
    with pytest.raises(DataLoss, match="release"):
        release_from_bytes(data, hashlib.sha256(data).hexdigest())


@pytest.mark.parametrize(
    ("changes", "binding", "field"),
    [
        ({"tokenizer_sha256": "other"}, Binding(tokenizer_sha256="tokenizer-1"), "tokenizer_sha256"),
        ({"vocabulary_size": 10}, Binding(vocabulary_size=49_152), "vocabulary_size"),
        ({"target_family": "llama"}, Binding(target_family="toy"), "target_family"),
        ({"byte_order": "big"}, Binding(), "byte_order"),
        ({"counter_bits": 32}, Binding(), "counter_bits"),
        ({"key_encoding": "ids"}, Binding(), "key_encoding"),
        ({"pruning": "hash"}, Binding(), "pruning"),
    ],
)
def test_a_release_that_is_not_what_is_served_is_refused_by_field(
    changes: dict[str, Any], binding: Binding, field: str
) -> None:
    with pytest.raises(FailedPrecondition, match=rf"release\.{field}"):
        check_binding(manifest(**changes), binding)


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="continuation_length"):
        manifest(continuation_length=0)
