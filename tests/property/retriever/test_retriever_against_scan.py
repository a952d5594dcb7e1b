"""Every answer equals a naive scan's, on corpora made to be awkward."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retriever.answering import merged_locally
from retriever.placement import place
from retriever.query import SegmentSet
from retriever.segment import Segment, segment_from_documents
from retriever.segment_format import segment_bytes, segment_from_bytes
from retriever.signposts import signposts_of
from retriever.trie import QueryLimits
from tests.oracle.retriever.naive_scan import continuations, naive_retrieve, prefix_counts

Documents = list[list[int]]

BASES = (0, 65_530, 2**32 - 4)


@st.composite
def corpora(draw: st.DrawFn) -> Documents:
    """Documents over few ids: empty, of one token, all equal, periodic, random, and cut at every place."""
    base = draw(st.sampled_from(BASES))
    ids = st.integers(base, base + draw(st.sampled_from((0, 1, 3))))
    shape = draw(st.sampled_from(("random", "equal", "periodic", "cut")))
    if shape == "equal":
        return [[base] * draw(st.integers(0, 40)) for _ in range(draw(st.integers(0, 3)))]
    if shape == "periodic":
        period = draw(st.lists(ids, min_size=1, max_size=4))
        return [period * draw(st.integers(1, 10)) for _ in range(draw(st.integers(1, 3)))]
    if shape == "cut":
        text = draw(st.lists(ids, max_size=24))
        at = draw(st.integers(0, len(text)))
        return [text[:at], text[at:]]
    return draw(st.lists(st.lists(ids, max_size=20), max_size=6))


@st.composite
def limits(draw: st.DrawFn) -> QueryLimits:
    longest = draw(st.integers(1, 12))
    return QueryLimits(
        max_suffix=longest,
        min_suffix=draw(st.integers(1, longest)),
        max_continuation=draw(st.integers(1, 6)),
        node_budget=draw(st.sampled_from((1, 2, 5, 16, 200))),
    )


@st.composite
def contexts(draw: st.DrawFn, documents: Documents) -> list[int]:
    """Part of a document, or ids of the neighbourhood, or unseen ones; also longer than the whole corpus."""
    seen = sorted({token for document in documents for token in document}) or [0]
    near = st.sampled_from([*seen, max(0, seen[0] - 1), min(2**32 - 1, seen[-1] + 1), 7, 2**32 - 1])
    if documents and draw(st.booleans()):
        document = draw(st.sampled_from(documents))
        return document[: draw(st.integers(0, len(document)))]
    return draw(st.lists(near, max_size=60))


def answer_of(segments: SegmentSet, context: list[int], limit: QueryLimits) -> tuple[object, ...]:
    found = segments.retrieve(context, limit)
    nodes = tuple(zip(found.paths(), found.counts.tolist(), strict=True))
    assert found.depths.tolist() == [len(path) for path, _ in nodes]
    assert found.miss == (found.match_count == 0) == (found.match_length == 0)
    return found.match_length, found.match_count, nodes, found.truncated


def dealt(data: st.DataObject, documents: Documents, hands: int) -> list[Documents]:
    cut: list[Documents] = [[] for _ in range(hands)]
    for document in documents:
        cut[data.draw(st.integers(0, hands - 1))].append(document)
    return cut


def signposted(data: st.DataObject, segment: Segment) -> Segment:
    """With signposts as close and as deep as drawn, or none: no answer may depend on them."""
    if data.draw(st.booleans()):
        return segment
    posts = signposts_of(
        segment.codes,
        segment.offsets_low,
        segment.offsets_high,
        spacing_bits=data.draw(st.integers(0, 3)),
        depth=data.draw(st.integers(1, 4)),
        least_tokens=1,
    )
    return replace(segment, signposts=posts)


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), documents=corpora(), limit=limits(), wide=st.booleans())
def test_answers_equal_a_naive_scan_however_documents_are_cut_into_segments(
    data: st.DataObject, documents: Documents, limit: QueryLimits, wide: bool
) -> None:
    context = data.draw(contexts(documents))
    cut = dealt(data, documents, data.draw(st.integers(1, 3)))
    segments = SegmentSet([signposted(data, segment_from_documents(part, wide_offsets=wide)) for part in cut])
    expected = naive_retrieve(
        documents,
        context,
        max_suffix=limit.max_suffix,
        min_suffix=limit.min_suffix,
        max_continuation=limit.max_continuation,
        node_budget=limit.node_budget,
    )
    found = answer_of(segments, context, limit)
    assert found == (expected.match_length, expected.match_count, expected.nodes, expected.truncated)


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), documents=corpora(), limit=limits())
def test_groups_merge_to_the_answer_of_one_retriever(
    data: st.DataObject, documents: Documents, limit: QueryLimits
) -> None:
    context = data.draw(contexts(documents))
    built = {f"segment-{n}": segment_from_documents([d]) for n, d in enumerate(documents)}
    placed = place(list(built), [f"group-{n}" for n in range(data.draw(st.integers(1, 4)))])
    groups = [SegmentSet([built[name] for name in names]) for names in placed.values()]
    whole = SegmentSet(built.values())
    assert merged_locally(groups, context, limit).same_as(whole.retrieve(context, limit))


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), documents=corpora(), least=st.integers(1, 5), depth=st.integers(1, 5))
def test_listing_and_counting_equal_a_naive_scan(
    data: st.DataObject, documents: Documents, least: int, depth: int
) -> None:
    suffix = data.draw(contexts(documents))[-3:]
    segments = SegmentSet([signposted(data, segment_from_documents(part)) for part in dealt(data, documents, 2)])
    counts = prefix_counts(continuations(documents, tuple(suffix), depth)) if suffix else {}
    listed = segments.above(suffix, depth, least, 10_000)
    expected = {path: count for path, count in counts.items() if count >= least}
    assert dict(zip(listed.paths(), listed.counts.tolist(), strict=True)) == expected
    assert listed.truncated == (len(expected) < len(counts))
    again = segments.count(suffix, listed.tokens, listed.parents, listed.depths)
    assert again.tolist() == listed.counts.tolist()


@settings(max_examples=100, deadline=None, derandomize=True)
@given(documents=corpora(), wide=st.booleans())
def test_documents_survive_a_segment_and_its_bytes(documents: Documents, wide: bool) -> None:
    data = segment_bytes(segment_from_documents(documents, wide_offsets=wide))
    read = segment_from_bytes(data)
    assert [d.tolist() for d in read.token_documents()] == [d for d in documents if d]
    assert segment_bytes(read) == data
