"""Slots of a KV cache: what is committed, what is staged, and the token budget they share.

Bookkeeping only. Where keys and values lie is the storage's business: a backend gives one that can be made, moved and
poisoned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np

from contracts.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from models.backend import Int64Array, KVSlot, RowBlock


class Storage(Protocol):
    """Keys and values of one slot, for all layers, addressed by row."""

    def move(self, sources: Int64Array, start: int) -> None:
        """Copy row `sources[i]` to row `start + i`, in order; sources ascend and `sources[i] >= start + i`."""
        ...

    def poison(self, start: int, stop: int) -> None:
        """Overwrite rows with NaN."""
        ...


S = TypeVar("S", bound=Storage)


class Slot(Generic[S]):
    """State of one slot. Rows [0, length) are committed, [length, length + staged) staged, the rest meaningless."""

    def __init__(self, capacity: int, storage: S) -> None:
        self.capacity = capacity
        self.length = 0
        self.parents: Int64Array = np.empty(0, np.int64)
        self.storage: S | None = storage

    @property
    def staged(self) -> int:
        return len(self.parents)


class SlotPool(Generic[S]):
    """All slots of one backend. `poison` overwrites rows with NaN as they die, so that a stray read shows."""

    def __init__(self, budget_tokens: int, *, poison: bool) -> None:
        self._budget = budget_tokens
        self._used = 0
        self._poison = poison
        self._slots: set[Slot[S]] = set()

    def admit(self, capacity: int) -> None:
        """Raise InvalidArgument or ResourceExhausted unless `capacity` rows can be reserved."""
        if capacity <= 0:
            raise InvalidArgument("capacity", f"must be positive, got {capacity}")
        left = self._budget - self._used
        if capacity > left:
            raise ResourceExhausted("kv_budget_tokens", f"{capacity} rows wanted, {left} of {self._budget} left")

    def add(self, capacity: int, storage: S) -> Slot[S]:
        slot = Slot(capacity, storage)
        self._slots.add(slot)
        self._used += capacity
        if self._poison:
            storage.poison(0, capacity)
        return slot

    def own(self, slot: KVSlot) -> Slot[S]:
        """The slot as this pool's. Raises FailedPrecondition when it is released or belongs elsewhere."""
        if not isinstance(slot, Slot) or slot not in self._slots:
            raise FailedPrecondition("slot", "released, or allocated by another backend")
        return slot

    def stage(self, slot: Slot[S], block: RowBlock) -> None:
        slot.parents = np.concatenate([slot.parents, block.parents])

    def commit(self, slot: Slot[S], keep: Sequence[int]) -> None:
        storage = self._storage(slot)
        parent = -1
        for row in keep:
            if not 0 <= row < slot.staged or slot.parents[row] != parent:
                raise InvalidArgument("keep", f"{list(keep)} is no path from a parentless staged row downwards")
            parent = row
        end = slot.length + slot.staged
        storage.move(slot.length + np.asarray(keep, np.int64), slot.length)
        slot.length += len(keep)
        self._drop_staged(slot, end)

    def truncate(self, slot: Slot[S], length: int) -> None:
        if not 0 <= length <= slot.length:
            raise InvalidArgument("length", f"must be within 0..{slot.length}, got {length}")
        end = slot.length + slot.staged
        slot.length = length
        self._drop_staged(slot, end)

    def release(self, slot: KVSlot) -> None:
        if isinstance(slot, Slot) and slot in self._slots:
            self._slots.remove(slot)
            self._used -= slot.capacity
            if self._poison:
                self._storage(slot).poison(0, slot.capacity)
            slot.storage = None
            slot.parents = np.empty(0, np.int64)

    def _drop_staged(self, slot: Slot[S], end: int) -> None:
        slot.parents = np.empty(0, np.int64)
        if self._poison:
            self._storage(slot).poison(slot.length, end)

    @staticmethod
    def _storage(slot: Slot[S]) -> S:
        if slot.storage is None:
            raise FailedPrecondition("slot", "released")
        return slot.storage
