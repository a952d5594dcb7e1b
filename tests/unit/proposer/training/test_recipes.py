"""A recipe takes the options that its family reads, and refuses the others rather than ignoring them."""

from __future__ import annotations

import pytest

from contracts.errors import InvalidArgument
from proposer.heads.manifest_checks import FAMILIES, MAX_DEPTH
from proposer.training.recipes import NAMES, recipe_of


def test_recipes_are_known_by_name() -> None:
    with pytest.raises(InvalidArgument, match="none of"):
        recipe_of("oracle")
    assert recipe_of("medusa-own").projection == "own"
    assert recipe_of("eagle3", taps=("layer:0", "final_norm")).taps == ("layer:0", "final_norm")
    assert all(recipe_of(name).family in FAMILIES for name in NAMES)


# option, a value, the families that read it, and where it is found in the recipe
OPTIONS = [
    ("inner", 24, {"hydra++", "clover", "eagle", "eagle3"}, lambda recipe: recipe.shape.get("inner")),
    ("taps", ("layer:0", "final_norm"), {"eagle3"}, lambda recipe: recipe.taps),
    ("noise", 0.2, {"eagle", "eagle3"}, lambda recipe: recipe.noise),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("option", "value", "readers", "found"), OPTIONS)
def test_an_option_is_read_or_refused_by_name(name: str, option: str, value, readers: set[str], found) -> None:
    if name in readers:
        assert found(recipe_of(name, **{option: value})) == value
        return
    with pytest.raises(InvalidArgument, match=f"of no use to {name}") as refusal:
        recipe_of(name, **{option: value})
    assert refusal.value.field == option


@pytest.mark.parametrize("name", NAMES)
def test_no_family_is_deeper_than_what_training_reads_back(name: str) -> None:
    assert recipe_of(name, depth=MAX_DEPTH).depth == MAX_DEPTH
    for wrong in (MAX_DEPTH + 1, 40, -1):
        with pytest.raises(InvalidArgument) as refusal:
            recipe_of(name, depth=wrong)
        assert refusal.value.field == "depth"


def test_negative_sizes_are_refused() -> None:
    for option, value in (("inner", -1), ("noise", -0.1)):
        with pytest.raises(InvalidArgument) as refusal:
            recipe_of("eagle", **{option: value})
        assert refusal.value.field == option
