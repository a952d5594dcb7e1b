"""The sessions' KV: who gets a slot, from whom it takes the start of its prompt, and what stays when a session ends.

A prompt whose start some session of the same scope holds, or held until lately, takes those rows over: a fork of that slot,
which costs the budget only the rows beyond. A session that ends parks its slot; parked slots are released, the least
recently used first, as soon as somebody needs the room or they exceed their limit. Rows taken over are bit for bit what a
prefill would give: any rows where the backend's results do not depend on how a context was split into passes, else whole
chunks of a prefill alone, which the taker would compute by the same passes (docs/decisions/0012-prefix-sharing.md).
"""

from __future__ import annotations

import itertools
import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from contracts.errors import ResourceExhausted
from models.backend import Backend, KVSlot, PrefixBackend
from verifier.hidden_log import HiddenLog
from verifier.prefix_index import PrefixIndex

if TYPE_CHECKING:
    from verifier.session import Session

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Holder:
    """A slot with the rows of a known token sequence, and their hidden rows where its session exported any.

    count: tokens of the sequence. exact: rows that others may take over, where the slot has them. session: whose it is,
    None once it is parked.
    """

    scope: str
    slot: KVSlot
    hidden: HiddenLog | None
    count: int
    exact: int
    session: Session | None
    key: tuple[bytes, int] = (b"", 0)

    @property
    def ready(self) -> int:
        """Rows that others may take over now."""
        return min(self.exact, self.slot.length)


@dataclass(frozen=True)
class Placement:
    """What a session opens with: its slot, whose first `cached` rows are there, and its log of hidden rows."""

    slot: KVSlot
    hidden: HiddenLog | None
    cached: int


class KVStore:
    """budget_tokens: rows that all sessions may reserve, at most the backend's. cache_tokens: rows that parked slots may
    hold at most, and hidden rows beside them; 0 parks nothing. sharing: False lets no session take over another's rows.
    prefill_chunk: rows of a prefill pass.
    """

    def __init__(
        self, backend: Backend, budget_tokens: int, *, prefill_chunk: int, cache_tokens: int, sharing: bool
    ) -> None:
        self._backend = backend
        self._budget = budget_tokens
        # Asked once: a runtime check of a protocol takes a tenth of a millisecond.
        self._paged = backend if isinstance(backend, PrefixBackend) else None
        self._forks = self._paged if sharing else None
        self._cache_tokens = cache_tokens
        self._any_row = backend.info.row_invariant_up_to >= prefill_chunk
        self._grain = 1 if self._any_row else prefill_chunk
        self._indexes: dict[str, PrefixIndex[Holder]] = {}
        self._live: dict[KVSlot, Holder] = {}
        self._parked: OrderedDict[KVSlot, Holder] = OrderedDict()

    @property
    def tokens_total(self) -> int:
        if self._paged is not None:
            return min(self._budget, self._paged.usage.total_tokens)
        return self._budget

    @property
    def tokens_free(self) -> int:
        """Rows that no open session holds."""
        if self._paged is not None:
            usage = self._paged.usage
            return max(0, self.tokens_total - (usage.total_tokens - usage.free_tokens - usage.parked_tokens))
        return self._budget - sum(holder.slot.capacity for holder in self._live.values())

    @property
    def tokens_cached(self) -> int:
        """Rows of parked slots, which are free as well."""
        return 0 if self._forks is None else self._forks.usage.parked_tokens

    @property
    def token_bytes(self) -> int:
        """Bytes of one row; 0 where the backend does not say."""
        return 0 if self._paged is None else self._paged.usage.token_bytes

    def place(self, prompt: npt.NDArray[np.int64], scope: str, taps: tuple[str, ...], capacity: int) -> Placement:
        """A slot of `capacity` rows. prompt: the rows to be prefilled, int64 [rows].

        Raises ResourceExhausted if they are not to be had, even if all parked slots were released.
        """
        rows, donor = self._best(prompt, scope, taps)
        if capacity - rows > self.tokens_free:
            # Said before anything is evicted in vain.
            raise ResourceExhausted("kv_tokens", f"{capacity} KV rows wanted, {self.tokens_free} are free")
        while True:
            try:
                slot = self._backend.allocate(capacity) if donor is None else self._fork(donor, rows, capacity)
            except ResourceExhausted:
                if self._evict(sparing=donor):
                    continue
                if donor is None or donor.session is not None:
                    raise
                # Last of all its own donor, whose other rows stand in the way.
                self._release(donor)
                rows, donor = 0, None
            else:
                break
        return Placement(slot, self._log(donor, rows, taps, capacity), rows)

    def hold(self, session: Session) -> None:
        """Makes an admitted session known, so that others may share its prompt as far as it is prefilled."""
        prompt = session.prefix[:-1]
        scope = session.request.cache_scope
        exact = len(prompt) // self._grain * self._grain
        self._enter(Holder(scope, session.slot, session.hidden, len(prompt), exact, session), prompt)

    def awaits(self, session: Session) -> bool:
        """Whether an earlier session is being prefilled with more of this one's prompt than this one and it have so far: to
        wait for it, and then `take_over`, saves these rows' prefill.
        """
        index = self._indexes.get(session.request.cache_scope)
        if self._forks is None or index is None:
            return False
        for shared, holder in index.nearest(session.prefix[:-1]):
            rows = min(shared, holder.exact) // self._grain * self._grain
            if rows <= session.slot.length:
                break
            other = holder.session
            if other is None or other.opened is not None or other.number >= session.number:
                continue
            if rows > holder.ready and _has(holder, session.taps):
                return True
        return False

    def take_over(self, session: Session) -> int:
        """Swaps the slot of a session in prefill for a fork of a longer one, if there is any; the rows gained."""
        before = session.slot.length
        prompt = session.prefix[:-1]
        rows, donor = self._best(prompt, session.request.cache_scope, session.taps, besides=session)
        if donor is None or rows <= before:
            return 0
        capacity = session.slot.capacity
        # Its own pages cover what the fork takes, so the fork cannot fail for room once they are free.
        self._release(self._live[session.slot])
        session.slot = self._fork(donor, rows, capacity)
        session.hidden = self._log(donor, rows, session.taps, capacity)
        self.hold(session)
        return rows - before

    def give_back(self, session: Session) -> None:
        """Ends a session's hold: its slot is parked if its rows may be of use, else released. Never raises."""
        holder = self._live.get(session.slot)
        if holder is None:
            # A fault between two slots left it none.
            return
        try:
            rows = session.slot.length if self._any_row else holder.ready
            if self._forks is None or self._cache_tokens == 0 or session.lost or rows == 0:
                self._release(holder)
            else:
                self._park(holder, session.prefix[:rows])
        except Exception:
            _log.exception("the KV of session %s was not parked", session.request.session_id)
            self._release(holder)

    def _best(
        self, prompt: npt.NDArray[np.int64], scope: str, taps: tuple[str, ...], *, besides: Session | None = None
    ) -> tuple[int, Holder | None]:
        """The most rows that may be taken over, and from whom."""
        best, donor = 0, None
        if self._forks is not None and scope in self._indexes:
            for shared, holder in self._indexes[scope].nearest(prompt):
                if shared <= best:
                    break
                rows = min(shared, holder.ready) // self._grain * self._grain
                if rows > best and (besides is None or holder.session is not besides) and _has(holder, taps):
                    best, donor = rows, holder
        return best, donor

    def _fork(self, donor: Holder, rows: int, capacity: int) -> KVSlot:
        assert self._forks is not None
        if donor.session is None:
            self._parked.move_to_end(donor.slot)
        return self._forks.fork(donor.slot, rows, capacity)

    def _log(self, donor: Holder | None, rows: int, taps: tuple[str, ...], capacity: int) -> HiddenLog | None:
        if not taps:
            return None
        log = HiddenLog(taps, capacity, self._backend.info.hidden_size)
        if donor is not None and donor.hidden is not None and rows:
            log.take_over(donor.hidden.start(rows))
        return log

    def _enter(self, holder: Holder, tokens: npt.NDArray[np.int64]) -> None:
        if self._forks is not None:
            holder.key = self._indexes.setdefault(holder.scope, PrefixIndex()).add(tokens, holder)
        (self._parked if holder.session is None else self._live)[holder.slot] = holder

    def _leave(self, holder: Holder) -> None:
        del (self._parked if holder.session is None else self._live)[holder.slot]
        if self._forks is not None:
            self._indexes[holder.scope].remove(holder.key)
            if not self._indexes[holder.scope]:
                del self._indexes[holder.scope]

    def _park(self, holder: Holder, tokens: npt.NDArray[np.int64]) -> None:
        assert self._forks is not None
        parked = ((n, other) for n, other in self._indexes[holder.scope].nearest(tokens) if other.session is None)
        for shared, other in itertools.islice(parked, 1):
            if shared == len(tokens) and _has(other, _taps(holder)):
                # Known already, and maybe how it goes on.
                self._parked.move_to_end(other.slot)
                return self._release(holder)
            if shared == other.count and _has(holder, _taps(other)):
                # A conversation's earlier turn.
                self._release(other)
        self._forks.park(holder.slot, len(tokens))
        self._leave(holder)
        holder.session, holder.count, holder.exact = None, len(tokens), len(tokens)
        self._enter(holder, tokens)
        while self._parked and self._over_limit():
            self._evict(sparing=None)

    def _over_limit(self) -> bool:
        logged = sum(len(holder.hidden) for holder in self._parked.values() if holder.hidden is not None)
        return max(self.tokens_cached, logged) > self._cache_tokens

    def _evict(self, *, sparing: Holder | None) -> bool:
        """Releases the least recently used parked slot; False if there is none but the one to be spared."""
        for holder in self._parked.values():
            if holder is not sparing:
                self._release(holder)
                return True
        return False

    def _release(self, holder: Holder) -> None:
        self._leave(holder)
        try:
            self._backend.release(holder.slot)
        except Exception:
            _log.exception("KV of %d tokens was not released", holder.slot.capacity)


def _taps(holder: Holder) -> tuple[str, ...]:
    return () if holder.hidden is None else holder.hidden.taps


def _has(holder: Holder, taps: tuple[str, ...]) -> bool:
    """Whether the holder has the hidden rows that a taker's session exports."""
    return set(taps) <= set(_taps(holder))
