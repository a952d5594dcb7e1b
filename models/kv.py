"""Pages of a KV cache and the slots over them: what is committed, what is staged, who shares what, and the token budget.

The cache is cut into pages of P rows. A slot is a table of pages: its row i lies in row i % P of page table[i // P]. Slots
may share pages; a page is written only by a slot that holds it alone, and one that must write to a shared page takes a copy
of it first. A parked slot keeps its committed rows until somebody's room is short: whoever parked it releases it then.
Block tables are vLLM's (Kwon et al. 2023, arXiv:2309.06180, section 4).

Bookkeeping only. Where keys and values lie is the memory's business: a backend gives one that copies and poisons rows.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from contracts.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from models.backend import Int64Array, KVSlot, KVUsage, RowBlock

_NOTHING: Int64Array = np.empty(0, np.int64)


class Memory(Protocol):
    """Keys and values of all pages, for all layers, addressed by row: row r is row r % page_rows of page r // page_rows."""

    @property
    def page_rows(self) -> int:
        """P."""
        ...

    @property
    def row_bytes(self) -> int:
        """Bytes of one row over all layers."""
        ...

    def copy(self, sources: Int64Array, targets: Int64Array) -> None:
        """Copy row sources[i] to row targets[i], one after another."""
        ...

    def copy_start(self, source: int, target: int, count: int) -> None:
        """Copy the first `count` rows of page `source` to those of page `target`."""
        ...

    def poison(self, rows: Int64Array) -> None:
        """Overwrite rows with NaN."""
        ...


class Slot:
    """State of one slot. Rows [0, length) are committed, [length, length + staged) staged, the rest meaningless.

    table: int64, its pages in order. parked: holds its committed rows only while nobody else needs the room.
    """

    def __init__(self, capacity: int, table: Int64Array, page_rows: int) -> None:
        self.capacity = capacity
        self.table = table
        self.page_rows = page_rows
        self.length = 0
        self.parents: Int64Array = _NOTHING
        self.parked = False

    @property
    def staged(self) -> int:
        return len(self.parents)

    def rows(self, start: int, stop: int) -> Int64Array:
        """Where rows [start, stop) lie in the memory, int64."""
        order = np.arange(start, stop)
        return self.table[order // self.page_rows] * self.page_rows + order % self.page_rows


class SlotPool:
    """All slots of one backend, over as many whole pages as hold `budget_tokens` rows.

    `poison` overwrites rows with NaN as they die, so that a stray read shows.
    """

    def __init__(self, budget_tokens: int, memory: Memory, *, poison: bool) -> None:
        count = page_count(budget_tokens, memory.page_rows)
        self._page_rows = memory.page_rows
        self._memory = memory
        self._poison = poison
        self._slots: set[Slot] = set()
        self._references = np.zeros(count, np.int64)
        self._parked = np.zeros(count, np.int64)
        # A heap: the lowest page first, so that a slot's pages tend to follow each other and idle memory stays untouched.
        self._free = list(range(count))

    @property
    def usage(self) -> KVUsage:
        parked = (self._references > 0) & (self._references == self._parked)
        return KVUsage(
            total_tokens=len(self._references) * self._page_rows,
            free_tokens=len(self._free) * self._page_rows,
            parked_tokens=int(np.count_nonzero(parked)) * self._page_rows,
            token_bytes=self._memory.row_bytes,
        )

    def allocate(self, capacity: int) -> Slot:
        """Raises InvalidArgument, or ResourceExhausted unless pages for `capacity` rows are free."""
        return self._add(capacity, np.empty(0, np.int64))

    def fork(self, slot: KVSlot, length: int, capacity: int) -> Slot:
        """See PrefixBackend.fork."""
        source = self.own(slot)
        if not 0 <= length <= min(source.length, capacity):
            raise InvalidArgument("length", f"must be within 0..{min(source.length, capacity)}, got {length}")
        whole = length // self._page_rows
        made = self._add(capacity, source.table[:whole])
        begun = length - whole * self._page_rows
        if begun:
            # The page that both would go on writing to: copied now, because the new slot writes to it next.
            self._memory.copy_start(int(source.table[whole]), int(made.table[whole]), begun)
        made.length = length
        return made

    def park(self, slot: KVSlot, length: int) -> None:
        """See PrefixBackend.park."""
        own = self.own(slot)
        self.truncate(own, length)
        if not own.parked:
            own.parked = True
            self._parked[own.table] += 1
        kept = self._pages(length) if length else 0
        self._drop(own, own.table[kept:])
        own.table, own.capacity = own.table[:kept], length

    def own(self, slot: KVSlot) -> Slot:
        """The slot as this pool's. Raises FailedPrecondition when it is released or belongs elsewhere."""
        if not isinstance(slot, Slot) or slot not in self._slots:
            raise FailedPrecondition("slot", "released, or allocated by another backend")
        return slot

    def make_writable(self, slot: Slot, count: int) -> None:
        """Lets the slot write its next `count` rows: copies pages that it shares. Raises ResourceExhausted without room."""
        start = slot.length + slot.staged
        for index in range(start // self._page_rows, self._pages(start + count)):
            page = slot.table[index]
            if self._references[page] == 1:
                continue
            (own,) = self._take(1)
            self._memory.copy_start(int(page), int(own), self._page_rows)
            self._drop(slot, slot.table[index : index + 1])
            # The table may be a view of another slot's.
            slot.table = slot.table.copy()
            slot.table[index] = own

    def stage(self, slot: Slot, block: RowBlock) -> None:
        slot.parents = np.concatenate([slot.parents, block.parents]) if slot.staged else block.parents.copy()

    def commit(self, slot: Slot, keep: Sequence[int]) -> None:
        parent = -1
        for row in keep:
            if not 0 <= row < slot.staged or slot.parents[row] != parent:
                raise InvalidArgument("keep", f"{list(keep)} is no path from a parentless staged row downwards")
            parent = row
        end = slot.length + slot.staged
        # A path that was staged first lies where it belongs.
        moved = next((index for index, row in enumerate(keep) if row != index), len(keep))
        if moved < len(keep):
            staged = slot.rows(slot.length, end)
            # A path ascends, so a row is read before its place is overwritten.
            self._memory.copy(staged[np.asarray(keep[moved:], np.int64)], staged[moved : len(keep)])
        slot.length += len(keep)
        self._drop_staged(slot, end)

    def extend(self, slot: Slot, count: int, *, dropped: int = 0) -> None:
        """Commits `count` rows that were written behind the slot's last, nothing being staged; so many behind them die."""
        slot.length += count
        self._drop_staged(slot, slot.length + dropped)

    def truncate(self, slot: Slot, length: int) -> None:
        if not 0 <= length <= slot.length:
            raise InvalidArgument("length", f"must be within 0..{slot.length}, got {length}")
        end = slot.length + slot.staged
        slot.length = length
        self._drop_staged(slot, end)

    def release(self, slot: KVSlot) -> None:
        if isinstance(slot, Slot) and slot in self._slots:
            self._slots.remove(slot)
            self._drop(slot, slot.table)
            slot.table = np.empty(0, np.int64)
            slot.parents = _NOTHING

    def _add(self, capacity: int, shared: Int64Array) -> Slot:
        if capacity <= 0:
            raise InvalidArgument("capacity", f"must be positive, got {capacity}")
        own = self._take(self._pages(capacity) - len(shared))
        self._references[shared] += 1
        slot = Slot(capacity, np.concatenate([shared, own]), self._page_rows)
        self._slots.add(slot)
        return slot

    def _take(self, count: int) -> Int64Array:
        left = len(self._free)
        if count > left:
            size = self._page_rows
            raise ResourceExhausted(
                "kv_budget_tokens",
                f"{count * size} rows wanted, {left * size} of {len(self._references) * size} left, in pages of {size}",
            )
        pages = np.array([heapq.heappop(self._free) for _ in range(count)], np.int64)
        self._references[pages] = 1
        self._poison_pages(pages)
        return pages

    def _drop(self, slot: Slot, pages: Int64Array) -> None:
        self._references[pages] -= 1
        if slot.parked:
            self._parked[pages] -= 1
        dead = pages[self._references[pages] == 0]
        self._poison_pages(dead)
        for page in dead.tolist():
            heapq.heappush(self._free, page)

    def _drop_staged(self, slot: Slot, end: int) -> None:
        slot.parents = _NOTHING
        if self._poison:
            rows = slot.rows(slot.length, end)
            self._memory.poison(rows[self._references[rows // self._page_rows] == 1])

    def _pages(self, tokens: int) -> int:
        return page_count(tokens, self._page_rows)

    def _poison_pages(self, pages: Int64Array) -> None:
        if self._poison:
            self._memory.poison((pages[:, None] * self._page_rows + np.arange(self._page_rows)).ravel())


def page_count(tokens: int, page_rows: int) -> int:
    """Pages that hold `tokens` rows."""
    return -(-tokens // page_rows)
