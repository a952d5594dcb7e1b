"""What a request may set of one source: whole numbers by name, described by the source so that admission can refuse them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contracts.errors import InvalidArgument


@dataclass(frozen=True)
class SourceOption:
    """One option of a source: a whole number in [low, high].

    default: what holds where no request sets it. not_below: the option of the same source that this one, where a request
    sets it, must reach at least; "" for none.
    """

    name: str
    low: int
    high: int
    default: int
    not_below: str = ""


def check_options(given: Mapping[str, int], table: Sequence[SourceOption], *, path: str = "options") -> None:
    """Raises InvalidArgument with field `<path>.<name>` for an option that is not in the table or not within its bounds."""
    known = {option.name: option for option in table}
    for name, value in given.items():
        option = known.get(name)
        if option is None:
            raise InvalidArgument(
                f"{path}.{name}", f"this source has no such option; known: {', '.join(sorted(known)) or 'none'}"
            )
        if not option.low <= value <= option.high:
            raise InvalidArgument(f"{path}.{name}", f"{value} is outside [{option.low}, {option.high}]")
        if option.not_below:
            least = given.get(option.not_below, known[option.not_below].default)
            if value < least:
                raise InvalidArgument(f"{path}.{name}", f"{value} is below {option.not_below}, {least}")
