"""A round's canonical bytes, which are written out by hand, are the canonical form of its fields."""

from hypothesis import given
from hypothesis import strategies as st

from contracts.manifest import RoundManifest, SourcePlan, canonical_bytes

PLANS = st.builds(SourcePlan, st.text(), st.integers(), st.integers())


@given(
    st.builds(
        RoundManifest,
        manifest_hash=st.text(),
        session_id=st.text(),
        round_id=st.integers(),
        prefix_len=st.integers(),
        frontier=st.text(),
        target_generation=st.integers(),
        plan=st.lists(PLANS, max_size=3).map(tuple),
        source_generations=st.dictionaries(st.text(), st.integers(), max_size=3),
        live_generation=st.integers(),
    )
)
def test_canonical_bytes_are_those_of_the_fields(manifest: RoundManifest) -> None:
    assert manifest.canonical == canonical_bytes(manifest.to_json())
