"""After any allocations, rounds, forks, parkings and releases no page leaks, none is lost or written by two, and every slot
reads what it wrote or inherited."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from contracts.errors import FailedPrecondition, ResourceExhausted
from models.backend import Int64Array, RowBlock
from models.kv import Slot, SlotPool

PAGE_ROWS, PAGES = 4, 12
DEAD = -1


class Tape:
    """A memory whose rows hold one number each. Reading a dead one is a test's failure."""

    page_rows = PAGE_ROWS
    row_bytes = 8

    def __init__(self) -> None:
        self.rows = np.full(PAGES * PAGE_ROWS, DEAD, np.int64)

    def copy(self, sources: Int64Array, targets: Int64Array) -> None:
        for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
            self.rows[target] = self.rows[source]

    def copy_start(self, source: int, target: int, count: int) -> None:
        rows = np.arange(count)
        self.copy(source * PAGE_ROWS + rows, target * PAGE_ROWS + rows)

    def poison(self, rows: Int64Array) -> None:
        self.rows[rows] = DEAD


@dataclass(eq=False)
class Held:
    """A slot beside what it must hold."""

    slot: Slot
    committed: list[int] = field(default_factory=list)
    staged: list[tuple[int, int]] = field(default_factory=list)
    parked: bool = False


class KVPages(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tape = Tape()
        self.pool = SlotPool(PAGES * PAGE_ROWS - 1, self.tape, poison=True)
        self.held: list[Held] = []
        self.written = 0

    @property
    def open(self) -> list[Held]:
        return [held for held in self.held if not held.parked]

    def pages_wanted(self, capacity: int, shared: int = 0) -> int:
        return -(-capacity // PAGE_ROWS) - shared // PAGE_ROWS

    @rule(capacity=st.integers(1, 20))
    def allocate(self, capacity: int) -> None:
        if self.pages_wanted(capacity) * PAGE_ROWS > self.pool.usage.free_tokens:
            with pytest.raises(ResourceExhausted):
                self.pool.allocate(capacity)
        else:
            self.held.append(Held(self.pool.allocate(capacity)))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), more=st.integers(0, 9))
    def fork(self, data: st.DataObject, more: int) -> None:
        donor = data.draw(st.sampled_from(self.held))
        length = data.draw(st.integers(0, len(donor.committed)))
        capacity = max(1, length + more)
        if self.pages_wanted(capacity, length) * PAGE_ROWS > self.pool.usage.free_tokens:
            before = self.pool.usage
            with pytest.raises(ResourceExhausted):
                self.pool.fork(donor.slot, length, capacity)
            assert self.pool.usage == before
        else:
            self.held.append(Held(self.pool.fork(donor.slot, length, capacity), donor.committed[:length]))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), wanted=st.integers(1, 7))
    def stage(self, data: st.DataObject, wanted: int) -> None:
        held = data.draw(st.sampled_from(self.open))
        slot = held.slot
        count = min(wanted, slot.capacity - slot.length - slot.staged)
        if count == 0:
            return
        start = slot.length + slot.staged
        try:
            self.pool.make_writable(slot, count)
        except ResourceExhausted:
            assert self.pool.usage.free_tokens == 0
            return
        references = Counter(page for other in self.held for page in other.slot.table.tolist())
        for row in slot.rows(start, start + count).tolist():
            assert references[row // PAGE_ROWS] == 1
            self.tape.rows[row] = self.written
            parent = data.draw(st.integers(-1, len(held.staged) - 1))
            held.staged.append((self.written, parent))
            self.written += 1
        parents = np.array([parent for _, parent in held.staged[-count:]], np.int64)
        nothing = np.zeros(count, np.int64)
        self.pool.stage(slot, RowBlock(slot, nothing, nothing, parents))

    @precondition(lambda self: any(held.staged for held in self.held))
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from([held for held in self.held if held.staged]))
        row, path = data.draw(st.integers(-1, len(held.staged) - 1)), []
        while row >= 0:
            path.append(row)
            row = held.staged[row][1]
        path.reverse()
        self.pool.commit(held.slot, path)
        held.committed += [held.staged[row][0] for row in path]
        held.staged.clear()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.open))
        length = data.draw(st.integers(0, len(held.committed)))
        self.pool.truncate(held.slot, length)
        del held.committed[length:]
        held.staged.clear()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def park(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.held))
        length = data.draw(st.integers(0, len(held.committed)))
        self.pool.park(held.slot, length)
        del held.committed[length:]
        held.staged.clear()
        held.parked = True
        assert len(held.slot.table) == -(-length // PAGE_ROWS)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.held))
        self.held.remove(held)
        self.pool.release(held.slot)
        self.pool.release(held.slot)
        for use in (lambda: self.pool.own(held.slot), lambda: self.pool.fork(held.slot, 0, 1)):
            with pytest.raises(FailedPrecondition):
                use()

    @invariant()
    def every_slot_reads_what_it_wrote_or_inherited(self) -> None:
        for held in self.held:
            slot = held.slot
            assert (slot.length, slot.staged) == (len(held.committed), len(held.staged))
            content = held.committed + [number for number, _ in held.staged]
            assert self.tape.rows[slot.rows(0, len(content))].tolist() == content

    @invariant()
    def no_page_leaks_and_none_is_counted_twice(self) -> None:
        usage = self.pool.usage
        tables = [(held.parked, set(held.slot.table.tolist())) for held in self.held]
        for held, (_, pages) in zip(self.held, tables, strict=True):
            assert len(pages) == len(held.slot.table)
        used = set().union(*(pages for _, pages in tables))
        live = set().union(*(pages for parked, pages in tables if not parked))
        assert usage.free_tokens == (PAGES - len(used)) * PAGE_ROWS
        assert usage.parked_tokens == len(used - live) * PAGE_ROWS
        free = [page for page in range(PAGES) if page not in used]
        assert all((self.tape.rows[page * PAGE_ROWS : (page + 1) * PAGE_ROWS] == DEAD).all() for page in free)

    def teardown(self) -> None:
        for held in self.held:
            self.pool.release(held.slot)
        assert self.pool.usage.free_tokens == PAGES * PAGE_ROWS
        assert (self.tape.rows == DEAD).all()


TestKVPages = KVPages.TestCase
TestKVPages.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
