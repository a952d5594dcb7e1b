"""The slots of a backend whose KV cache is one pool of pages: what all backends here do alike."""

from __future__ import annotations

from collections.abc import Sequence

from models.backend import KVSlot, KVUsage
from models.kv import SlotPool


class PooledSlots:
    """The part of PrefixBackend that is bookkeeping; see there. Whoever inherits it sets `_pool`."""

    _pool: SlotPool

    @property
    def usage(self) -> KVUsage:
        return self._pool.usage

    def allocate(self, capacity: int) -> KVSlot:
        return self._pool.allocate(capacity)

    def fork(self, slot: KVSlot, length: int, capacity: int) -> KVSlot:
        return self._pool.fork(slot, length, capacity)

    def park(self, slot: KVSlot, length: int) -> None:
        self._pool.park(slot, length)

    def commit(self, slot: KVSlot, keep: Sequence[int]) -> None:
        self._pool.commit(self._pool.own(slot), keep)

    def rollback(self, slot: KVSlot) -> None:
        self._pool.commit(self._pool.own(slot), ())

    def truncate(self, slot: KVSlot, length: int) -> None:
        self._pool.truncate(self._pool.own(slot), length)

    def release(self, slot: KVSlot) -> None:
        self._pool.release(slot)
