"""Which part of every release a retriever holds: all of it, or the segments placed on its group.

Placement is rendezvous hashing (Thaler and Ravishankar, IEEE/ACM ToN 1998): a segment goes to the groups with the
highest sha256(group, segment); when a group joins or leaves, only segments it gains or held move.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from contracts.errors import InvalidArgument


def place(digests: Sequence[str], groups: Collection[str], copies: int = 1) -> dict[str, tuple[str, ...]]:
    """Which segments each group holds, in the release's order; each segment on `copies` groups (1 for exact counts).

    Depends on the names alone, not on the order of `groups`. Raises InvalidArgument for no groups or too many copies.
    """
    names = sorted(set(groups))
    if not 1 <= copies <= len(names):
        raise InvalidArgument("copies", f"{copies} copies over {len(names)} groups")
    placed: dict[str, list[str]] = {name: [] for name in names}
    for digest in digests:
        for name in sorted(names, key=lambda name: _weight(name, digest))[-copies:]:
            placed[name].append(digest)
    return {name: tuple(held) for name, held in placed.items()}


def _weight(group: str, digest: str) -> bytes:
    return hashlib.sha256(f"{group}\0{digest}".encode()).digest()


@dataclass(frozen=True, slots=True)
class Share:
    """group: this retriever's; groups: all of them, by name. Without groups a retriever holds everything.

    Raises InvalidArgument for a group that is not among the groups.
    """

    group: str = ""
    groups: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.group not in (self.groups or ("",)):
            raise InvalidArgument(
                "retriever_group", f"{self.group!r} is not among {', '.join(self.groups) or 'no groups'}"
            )

    @property
    def whole(self) -> bool:
        """Whether it holds everything, and so may answer alone."""
        return len(self.groups) <= 1

    def held(self, digests: Sequence[str]) -> frozenset[str]:
        """Those of the segments that are placed here."""
        return frozenset(digests if self.whole else place(digests, self.groups)[self.group])

    def holds_live(self, index: str) -> bool:
        """Whether the index's live segments are answered from here: one group does it, so that they count once."""
        return self.whole or bool(self.held([f"live:{index}"]))


EVERYTHING = Share()
