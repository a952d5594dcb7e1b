"""What every draft head is to the rest of the proposer, and what it needs from outside: rows of the target's hidden states.

Rows are numbered by position: row t is the target's state after token t. With a published prefix of L tokens the target
has rows 0 .. L - 2, for the anchor (token L - 1) has not been run yet (DECISIONS 3); row L - 2 is the one that predicted the
anchor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol, TypeGuard, runtime_checkable

import numpy as np
import numpy.typing as npt
from torch import Tensor

from proposer.heads.vocabulary import DraftVocabulary

Int64Array = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

# Rows of a usual round: what its receipt brought, and the last one anew.
ROUND_ROWS = 16


class HiddenStates(Protocol):
    """The target's hidden rows of one session, as the verifier exports them. Where they lie in arrays it may have
    `arrays(start, stop)` besides: `rows`, C-contiguous and without torch (`arrays_of`).
    """

    @property
    def base(self) -> int:
        """The first row that there is: where only the end of a prompt is read, those before it are not. One a session."""
        ...

    def rows(self, start: int, stop: int) -> Mapping[str, Tensor]:
        """Per tap float32 [stop - start, H] of committed input rows [start, stop).

        Any range of rows base .. L - 2 may be asked for again: a head that lost its state recovers so. Raises Unavailable
        when the rows cannot be had now; the head's own state is unchanged then.
        """
        ...


class HeadSession(Protocol):
    """One session's drafting state; the same three calls a draft model's cache has (proposer/draft_cache.py)."""

    def follow(self, prefix: Int64Array, states: HiddenStates) -> Tensor:
        """Brings the state to the published `prefix` int64 [L], L >= 2: what a rejected draft or another prefix left is
        dropped, what is missing is asked of `states`. Returns the logits for the token after the anchor, float32 [V'].
        """
        ...

    def stage(self, token_ids: Sequence[int], parents: Sequence[int], depths: Sequence[int]) -> Tensor:
        """Runs guesses (target ids) behind the followed prefix: logits for their children, float32 [N, V'].

        parents: staged rows, counted over all calls since `follow`, -1 for the anchor. depths: 1 for the anchor's children.
        """
        ...

    def settle(self) -> None:
        """Ends the round: staged rows were computed from predicted states and are dropped."""
        ...

    def release(self) -> None:
        """Gives the state's rows back; the session is dead afterwards."""
        ...


@dataclass(frozen=True)
class Grown:
    """Nodes of a tree by value, in the order of growth: target ids, parents (-1: the anchor), depths, and path
    log-probabilities, all [N]."""

    tokens: Sequence[int]
    parents: Sequence[int]
    depths: Sequence[int]
    values: Sequence[float]


@runtime_checkable
class GrowingSession(HeadSession, Protocol):
    """A session that grows trees by value on its own, for a fraction of what laws over its vocabulary would cost, and that
    can run rows ahead of the round that needs them."""

    def behind(self, prefix_len: int) -> int:
        """How many rows of a prefix that goes on from the last one are not run yet."""
        ...

    def catch_up(self, prefix: Int64Array, states: HiddenStates) -> None:
        """Runs what is missing of the rows of `prefix` int64 [L], of which hidden rows 0 .. L - 2 are there."""
        ...

    def grow(self, prefix: Int64Array, states: HiddenStates, *, width: int, depth: int, floor: float) -> Grown:
        """As `follow`, and EAGLE-2's growth behind the anchor: `depth` levels, the `width` most valuable nodes of each with
        `width` children, none of a node of a path probability below `floor`. Nothing is left staged.
        """
        ...


def grows(session: HeadSession | None) -> TypeGuard[GrowingSession]:
    """Whether it is a GrowingSession: `isinstance`, which goes through a protocol's methods, asked once a class."""
    kind: type = type(session)
    return _grows(kind)


@cache
def _grows(kind: type) -> bool:
    return issubclass(kind, GrowingSession)


class DraftHead(Protocol):
    """A loaded head. Not thread-safe. taps: the rows it reads. max_depth: how deep it can draft; None for any depth."""

    @property
    def taps(self) -> tuple[str, ...]: ...

    @property
    def vocabulary(self) -> DraftVocabulary: ...

    @property
    def max_depth(self) -> int | None: ...

    def open(self, capacity: int) -> HeadSession:
        """A session for prefixes and drafts of up to `capacity` tokens. Raises ResourceExhausted when there is no room."""
        ...


def arrays_of(states: HiddenStates, start: int, stop: int) -> Mapping[str, Floats]:
    """Rows as arrays: a round's few are read for less so than through tensors. Raises as `rows`."""
    arrays = getattr(states, "arrays", None)
    if arrays is None:
        return {tap: rows.numpy() for tap, rows in states.rows(start, stop).items()}
    found: Mapping[str, Floats] = arrays(start, stop)
    return found


def common_length(left: Int64Array, right: Int64Array) -> int:
    """How many leading tokens two prefixes share."""
    shared = min(len(left), len(right))
    if left[:shared].tobytes() == right[:shared].tobytes():
        return shared
    differing = np.flatnonzero(left[:shared] != right[:shared])
    return int(differing[0]) if len(differing) else shared
