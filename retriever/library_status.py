"""What a library says of itself: what it serves, what it should, and why not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IndexStatus:
    """One index: the newest release served ("" for none), its alias version, what the store wants, and why not yet."""

    serving_release: str
    serving_version: int
    wanted_release: str
    wanted_version: int
    releases_kept: tuple[str, ...]
    resident_bytes: int
    error: str


@dataclass(frozen=True, slots=True)
class LibraryStatus:
    """store_connected: the last exchange with the store worked; store_error says what did not. swaps: since the start.
    from_local_copy: the store has not answered since the start, and what was served before it is served from this disk.
    """

    store_connected: bool
    store_error: str
    from_local_copy: bool
    swaps: int
    indexes: Mapping[str, IndexStatus]
