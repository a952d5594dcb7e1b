"""What settings must hold beyond their own type: names that exist, numbers that fit each other. Imports nothing heavy.

Each rule is told the setting's name (or names) and raises InvalidArgument naming its variable.
"""

from __future__ import annotations

import re
from pathlib import Path

from contracts.errors import InvalidArgument

PREFIX = "DRAFTPROOF_"
WIDTHS = re.compile(r"\d+(,\d+)*")
BY_VALUE = re.compile(r"by_value:(\d+)x(\d+)")
COMB = re.compile(r"comb:(\d+)x(\d+)")
FORCED = "forced:"
MEDUSA = "medusa:"
# Every source that the services can serve; `retrieval:<index>` and further draft models (`draft_model_2`) besides.
SOURCES = ("prompt_lookup", "retrieval", "draft_model", "head")
_FURTHER = re.compile(r"retrieval:.+|draft_model_[1-9]\d*")
_ENDPOINT = re.compile(r"[^\s,]+:(\d{1,5})|unix:[^\s,]+")

_STORE = re.compile(r"(redis|rediss|unix)://\S+")


def refused(name: str, message: str) -> InvalidArgument:
    """The error that names the setting's variable."""
    return InvalidArgument(PREFIX + name.upper(), message)


def names_in(listed: str) -> tuple[str, ...]:
    """The names in a comma-separated setting."""
    return tuple(name.strip() for name in listed.split(",") if name.strip())


def at_most(name: str, value: int, other: str, limit: int) -> None:
    """One setting is not above another."""
    if value > limit:
        raise refused(name, f"{value} is above {PREFIX}{other.upper()}, {limit}")


def sources(name: str, listed: str) -> None:
    """Names of sources, each once."""
    given = names_in(listed)
    for source in given:
        if source not in SOURCES and not _FURTHER.fullmatch(source):
            raise refused(name, f"{source!r} is no source; known: {', '.join(SOURCES)}, retrieval:INDEX")
        if given.count(source) > 1:
            raise refused(name, f"{source!r} is named twice")


def is_endpoint(text: str) -> bool:
    """host:port of a port that there is (gRPC would dial 99999 as 34463), or unix:path."""
    found = _ENDPOINT.fullmatch(text)
    return found is not None and (found[1] is None or 1 <= int(found[1]) <= 65_535)


def endpoints(name: str, listed: str, *, several: bool = False) -> None:
    """host:port, or several separated by commas."""
    for endpoint in listed.split(",") if several else (listed,):
        if not is_endpoint(endpoint.strip()):
            raise refused(name, f"{endpoint!r} is not host:port, the port within [1, 65535]")


def store(name: str, url: str) -> None:
    """Empty, or an address that a Redis client can dial."""
    if url and not _STORE.fullmatch(url):
        raise refused(name, f"{url!r} is not a redis://, rediss:// or unix:// address")


def backend(chosen: str, device: str, dtype: str) -> None:
    """The implementation runs on the device and computes with weights of that type."""
    kind = device.split(":")[0]
    if chosen and chosen != "transformers" and chosen.split("-")[0] != kind:
        raise refused("backend", f"{chosen!r} does not run on {PREFIX}DEVICE, {device!r}")
    if dtype in ("int8", "int4") and (kind != "cpu" or chosen not in ("", "cpu-llvm")):
        raise refused("dtype", f"{dtype!r} runs on a CPU with {PREFIX}BACKEND empty or cpu-llvm")


def tree(name: str, text: str) -> None:
    """A tree as services/trees.py reads it."""
    named = any(pattern.fullmatch(text) for pattern in (WIDTHS, BY_VALUE, COMB))
    if not named and not Path(text.removeprefix(MEDUSA).removeprefix(FORCED)).is_file():
        raise refused(name, f"{text!r} is neither widths (4,2,1), nor by_value:KxD, comb:KxD or a calibration's file")


def relation_of_tree(name: str, relation: str, tree_name: str, text: str) -> None:
    """A tree by value takes the relation beam alone."""
    if BY_VALUE.fullmatch(text) and relation != "beam":
        raise refused(name, f"{relation!r}, but {PREFIX}{tree_name.upper()} grows by value, which needs 'beam'")


def group(name: str, own: str, listed: str) -> None:
    """A group is one of all groups. That a retriever has one where there are groups is for that process to say."""
    groups = names_in(listed)
    if own and own not in groups:
        raise refused(name, f"{own!r} is not among {', '.join(groups) or 'no groups'}")
