"""A session drafts tokens of its own text that the draft vocabulary lacks: as if the vocabulary had them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from proposer.heads import eagle_draft
from proposer.heads.eagle_draft import EagleHead
from proposer.heads.families import head_of, network_of
from proposer.heads.head import DraftHead, Grown, Int64Array
from proposer.heads.package import HeadPackage
from proposer.heads.vocabulary import DraftVocabulary
from tests.unit.proposer.heads.tiny_heads import EOS, VOCAB, VOCABULARY, Rows, frozen, head, manifest_of, network

OUTSIDE = sorted(set(range(VOCAB)) - set(VOCABULARY.ids.tolist()))


def with_vocabulary(extra: list[int]) -> DraftHead:
    """The same head, its draft vocabulary larger by `extra`."""
    ids = np.array(sorted({*VOCABULARY.ids.tolist(), *extra}))
    vocabulary = DraftVocabulary(ids, target_size=VOCAB, eos_ids=(EOS,))
    manifest = replace(manifest_of("eagle3"), vocabulary_size=len(ids))
    tensors = {name: value.detach().clone() for name, value in network("eagle3").named_parameters()}
    loaded = HeadPackage(manifest, vocabulary, tensors, {})
    return head_of(loaded, network_of(manifest, frozen(), vocabulary), kv_budget_tokens=2048, dtype=torch.float32)


def text(length: int, outside: list[int], seed: int = 3) -> Int64Array:
    """Tokens of the vocabulary, those outside among them in the order given."""
    generator = np.random.default_rng(seed)
    tokens = VOCABULARY.ids[generator.integers(0, len(VOCABULARY), length)].copy()
    places = np.linspace(1, length - 2, len(outside)).astype(int) if outside else []
    tokens[places] = outside
    return tokens


def grow(drafting: DraftHead, prefix: Int64Array, **changes: int) -> Grown:
    options = {"width": 4, "depth": 4} | changes
    return drafting.open(160).grow(prefix, Rows(prefix), floor=0.0, **options)  # type: ignore[attr-defined,no-any-return]


def same_tree(one: Grown, other: Grown) -> None:
    assert list(one.tokens) == list(other.tokens)
    assert list(one.parents) == list(other.parents)
    assert np.allclose(one.values, other.values, atol=1e-5)


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, len(OUTSIDE)])
def test_the_tree_is_that_of_a_vocabulary_that_has_them(count: int) -> None:
    prefix = text(60, OUTSIDE[:count])
    own, wider = grow(head("eagle3", own_tokens=True)[1], prefix), grow(with_vocabulary(OUTSIDE[:count]), prefix)
    same_tree(own, wider)
    if count > 10:
        assert set(own.tokens) & set(OUTSIDE)


def test_what_the_text_brings_later_is_drafted_from_then_on() -> None:
    _, drafting = head("eagle3", own_tokens=True)
    session = drafting.open(160)
    for length in (20, 33, 34, 60):
        prefix = text(60, OUTSIDE)[:length]
        known = [token for token in prefix.tolist() if token in OUTSIDE]
        grown = session.grow(prefix, Rows(prefix), width=4, depth=3, floor=0.0)  # type: ignore[attr-defined]
        same_tree(grown, grow(with_vocabulary(known), prefix, depth=3))
    assert set(known) == set(OUTSIDE)


def test_a_text_that_the_vocabulary_covers_and_a_head_without_the_targets_rows_draft_as_before() -> None:
    covered = text(40, [])
    plain, own = head("eagle3")[1], head("eagle3", own_tokens=True)[1]
    assert grow(own, covered) == grow(plain, covered)
    tokens = grow(plain, text(40, OUTSIDE)).tokens
    assert set(tokens) <= set(VOCABULARY.ids.tolist())


def test_a_session_has_a_limit_of_them_and_keeps_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eagle_draft, "MOST_FURTHER", 3)
    prefix = text(50, OUTSIDE[:9])
    same_tree(grow(head("eagle3", own_tokens=True)[1], prefix), grow(with_vocabulary(OUTSIDE[:3]), prefix))


def test_sessions_do_not_draft_each_others() -> None:
    _, drafting = head("eagle3", own_tokens=True)
    assert isinstance(drafting, EagleHead)
    first, second = text(40, OUTSIDE[:9]), text(40, OUTSIDE[9:14], seed=4)
    grow(drafting, first)
    same_tree(grow(drafting, second), grow(with_vocabulary(OUTSIDE[9:14]), second))


def test_any_number_of_threads_gives_the_same_tree() -> None:
    prefix = text(60, OUTSIDE)
    one, other = head("eagle3", own_tokens=True)[1], head("eagle3", own_tokens=True)[1]
    other._layer._threads = 1  # type: ignore[attr-defined]
    assert grow(one, prefix) == grow(other, prefix)
