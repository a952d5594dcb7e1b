"""The target's hidden rows as a proposer service received them, by session: what sources with taps draft from.

Rows come with the calls that need them and are append-only, for a session's published prefix only ever grows. They begin at
the base that they name: sources need not read all of a long prompt. Losing them is harmless: whoever lacks rows refuses with
the field `contracts.hidden.HIDDEN_BASE`, and the caller sends them from the base on.

One thread takes rows and drops sessions, while another may read: a reader gets views of rows that are never written again,
and a buffer that grows is replaced, not resized.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from contracts.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from contracts.hidden import HIDDEN_BASE, HiddenRows, Rows
from contracts.ports import ProposeRequest

_LEAST_ROWS = 256


class _Tap:
    """Rows base .. length - 1 of one tap."""

    def __init__(self, width: int, base: int) -> None:
        self._buffer: Rows = np.empty((_LEAST_ROWS, width), np.float32)
        self.base = self.length = base

    @property
    def nbytes(self) -> int:
        return self._buffer.nbytes

    def between(self, start: int, stop: int) -> Rows:
        return self._buffer[start - self.base : stop - self.base]

    def put(self, start: int, rows: Rows) -> bool:
        """Whether the buffer had to grow for them."""
        stop, held = start + len(rows), self.length - self.base
        grows = stop - self.base > len(self._buffer)
        if grows:
            grown = np.empty((max(stop - self.base, 2 * len(self._buffer)), self._buffer.shape[1]), np.float32)
            grown[:held] = self._buffer[:held]
            self._buffer = grown
        # Rows held already are the same rows: what is sent twice must not be written under a reader.
        fresh = max(0, self.length - start)
        if fresh < len(rows):
            self.between(start + fresh, stop)[:] = rows[fresh:]
            self.length = stop
        return grows


class SessionRows:
    """One session's rows, as a head reads them (proposer/heads/head.py, HiddenStates)."""

    def __init__(self, taps: Mapping[str, _Tap]) -> None:
        self._taps = taps

    def rows(self, start: int, stop: int) -> Mapping[str, Tensor]:
        """As `arrays`, as tensors."""
        return {name: torch.from_numpy(rows) for name, rows in self.arrays(start, stop).items()}

    def arrays(self, start: int, stop: int) -> Mapping[str, Rows]:
        """Per tap float32 [stop - start, H], views that must not be written to. Raises FailedPrecondition (HIDDEN_BASE)
        before the base and past what was received."""
        self.check(stop)
        if start < self.base:
            raise FailedPrecondition(HIDDEN_BASE, f"rows begin at {self.base}, {start} is needed")
        return {name: tap.between(start, stop) for name, tap in self._taps.items()}

    @property
    def base(self) -> int:
        """Of the first row: one for all taps of a session."""
        return next(iter(self._taps.values())).base

    @property
    def count(self) -> int:
        """Where the rows received of all taps end."""
        return min(tap.length for tap in self._taps.values())

    def check(self, stop: int) -> None:
        """Raises FailedPrecondition (HIDDEN_BASE) unless rows up to `stop` are here."""
        for name, tap in self._taps.items():
            if stop > tap.length:
                raise FailedPrecondition(HIDDEN_BASE, f"{tap.length} rows of {name!r} are here, {stop} are needed")


class HiddenStore:
    """Rows of many sessions; where they pass `most_bytes`, the session that was fed longest ago loses its own.

    hidden_size: width of a row.
    """

    def __init__(self, *, hidden_size: int, most_bytes: int = 256 << 20) -> None:
        self._hidden_size = hidden_size
        self._most_bytes = most_bytes
        self._sessions: OrderedDict[str, dict[str, _Tap]] = OrderedDict()

    @property
    def bytes_held(self) -> int:
        """What all sessions' buffers take."""
        return sum(map(_bytes, self._sessions.values()))

    def take(self, session_id: str, hidden: HiddenRows) -> None:
        """Adds rows of a session.

        Raises FailedPrecondition (HIDDEN_BASE) where rows before them are missing, InvalidArgument for another width,
        ResourceExhausted where one session alone is too large; nothing is taken then.
        """
        held = self._sessions.get(session_id, {})
        if any(tap.base != hidden.base for tap in held.values()):
            # Rows of another base are no part of these; a source that still reads them will miss them by name.
            held = {}
        for name, rows in hidden.taps.items():
            if rows.shape[1] != self._hidden_size:
                raise InvalidArgument(
                    "hidden.rows", f"{name!r} is {rows.shape[1]} wide, this target's are {self._hidden_size}"
                )
            length = held[name].length if name in held else hidden.base
            if hidden.start > length:
                raise FailedPrecondition(HIDDEN_BASE, f"{hidden.start} is past the {length} rows of {name!r} received")
        least = 4 * self._hidden_size * (hidden.stop - hidden.base) * len({*held, *hidden.taps})
        if least > self._most_bytes:
            raise ResourceExhausted("hidden.rows", f"a session of {least} bytes; all may hold {self._most_bytes}")
        self._sessions[session_id] = held
        self._sessions.move_to_end(session_id)
        grows = False
        for name, rows in hidden.taps.items():
            if name not in held:
                held[name] = _Tap(self._hidden_size, hidden.base)
                grows = True
            grows = held[name].put(hidden.start, rows) or grows
        while grows and len(self._sessions) > 1 and self.bytes_held > self._most_bytes:
            self._sessions.popitem(last=False)

    def held(self, session_id: str, taps: Sequence[str]) -> SessionRows:
        """What is here of these taps. Raises FailedPrecondition (HIDDEN_BASE) for a tap of which nothing is."""
        here = self._sessions.get(session_id, {})
        for tap in taps:
            if tap not in here:
                raise FailedPrecondition(HIDDEN_BASE, f"no rows of {tap!r} are here")
        return SessionRows({tap: here[tap] for tap in taps})

    def of(self, taps: Sequence[str]) -> TapRows:
        """The rows of these taps, as one source is given them."""
        return TapRows(self, taps)

    def drop(self, session_id: str) -> None:
        """Forgets a session; unknown ones are ignored."""
        self._sessions.pop(session_id, None)


class TapRows:
    """One source's view of a store: implements HiddenStateSource (proposer/heads/source.py)."""

    def __init__(self, store: HiddenStore, taps: Sequence[str]) -> None:
        self._store, self._taps = store, tuple(taps)

    def states(self, request: ProposeRequest) -> SessionRows:
        """Raises FailedPrecondition (HIDDEN_BASE) where rows of the request's prefix are missing."""
        rows = self._store.held(request.manifest.session_id, self._taps)
        rows.check(len(request.prefix) - 1)
        return rows

    def so_far(self, request: ProposeRequest) -> tuple[SessionRows, int]:
        """What came so far, no row past the request's prefix counted. Raises as `states` where nothing did."""
        rows = self._store.held(request.manifest.session_id, self._taps)
        return rows, min(rows.count, len(request.prefix) - 1)


def _bytes(taps: Mapping[str, _Tap]) -> int:
    return sum(tap.nbytes for tap in taps.values())
