"""One scope's published outputs, searchable by generation.

Generation g is a fixed set of outputs: a function of the stream's entries 1..g, whoever replays them. It is the last
`max_entries` of them, and none that a *floor* entry (left by compaction) at or before g has retired. Two retrievers
that both still have generation g answer alike; one that has lost an entry of it says so instead.

Entries are indexed in blocks that cover aligned ranges of generations, [j 2^k + 1, (j + 1) 2^k]: any range is at most
2 log2(n) blocks, and one more entry builds few new ones. Counts add up over segments, so the cut into blocks cannot be
seen in an answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from contracts.errors import DataLoss
from retriever.live_store import LiveEntry, decode_entry
from retriever.segment import Segment, segment_from_documents

# Blocks of this many of the newest generations stay built; those of older ones are built again when asked for.
WARM_GENERATIONS = 16

# (level, number) of an aligned range of generations.
Block = tuple[int, int]


class LiveIndex:
    """Not thread-safe: its owner serialises calls (`live.LiveLibrary`).

    max_entries: outputs in a generation, and how many the store keeps. keep_generations: how many of the newest
    generations stay askable.
    """

    def __init__(self, max_entries: int, keep_generations: int) -> None:
        self._max_entries = max_entries
        self._keep = keep_generations
        self._outputs: dict[int, NDArray[np.uint32]] = {}
        self._floors: dict[int, int] = {}
        self._first = 1
        self._received = 0
        self._newest = 0
        self._blocks: dict[Block, Segment] = {}
        self._unreadable = 0

    @property
    def newest(self) -> int:
        """The newest generation that is indexed, 0 before the first entry."""
        return self._newest

    @property
    def received(self) -> int:
        """The newest generation whose entry has been taken."""
        return self._received

    @property
    def unreadable(self) -> int:
        """Entries whose payload could not be read; they count as empty outputs."""
        return self._unreadable

    def append(self, entries: Sequence[LiveEntry]) -> None:
        """Take the stream's next entries and index them: `receive`, `missing` and `install` in one."""
        self.receive(entries)
        self.install({block: segment_from_documents(documents) for block, documents in self.missing().items()})

    def receive(self, entries: Sequence[LiveEntry]) -> None:
        """Take the stream's next entries, in order; those already taken are skipped. They are not searchable yet."""
        for entry in entries:
            if entry.generation <= self._received:
                continue
            if entry.generation != self._received + 1:
                # The stream no longer has what lies between: nothing older than this entry can be reproduced.
                self._first = entry.generation
                self._outputs.clear()
                self._blocks.clear()
            self._received = entry.generation
            try:
                content = decode_entry(entry.payload)
            except DataLoss:
                self._unreadable += 1
                content = np.empty(0, np.uint32)
            if isinstance(content, int):
                self._floors[entry.generation] = content
                content = np.empty(0, np.uint32)
            self._outputs[entry.generation] = content

    def missing(self) -> dict[Block, list[NDArray[np.uint32]]]:
        """The outputs of each block that the newest entry's generation needs and that is not built."""
        if self._begin(self._received) < self._first:
            return {}
        blocks = _aligned_blocks(self._begin(self._received), self._received)
        return {block: self._documents(block) for block in blocks if block not in self._blocks}

    def install(self, built: Mapping[Block, Segment]) -> None:
        """Take in the missing blocks and show the newest entry's generation."""
        self._blocks.update(built)
        self._newest = self._received
        self._forget()

    def segments(self, generation: int) -> tuple[Segment, ...] | None:
        """What the generation holds, or None where it cannot be reproduced here (too old, too new, entries lost)."""
        if not self._reproducible(generation):
            return None
        return tuple(self._block(*block) for block in _aligned_blocks(self._begin(generation), generation))

    def outputs(self, generation: int) -> list[NDArray[np.uint32]] | None:
        """The generation's non-empty outputs in stream order, or None as for `segments`."""
        if not self._reproducible(generation):
            return None
        held = (self._outputs[g] for g in range(self._begin(generation), generation + 1))
        return [tokens for tokens in held if tokens.size]

    def _reproducible(self, generation: int) -> bool:
        recent = max(0, self._newest - self._keep) < generation <= self._newest
        return recent and self._begin(generation) >= self._first

    def _begin(self, generation: int) -> int:
        floor = max((floor for at, floor in self._floors.items() if at <= generation), default=0)
        return max(generation - self._max_entries, floor) + 1

    def _block(self, level: int, number: int) -> Segment:
        if (level, number) not in self._blocks:
            self._blocks[level, number] = segment_from_documents(self._documents((level, number)))
        return self._blocks[level, number]

    def _documents(self, block: Block) -> list[NDArray[np.uint32]]:
        level, number = block
        first = number * 2**level + 1
        return [self._outputs[g] for g in range(first, first + 2**level)]

    def _forget(self) -> None:
        oldest = self._begin(max(1, self._newest - self._keep + 1))
        for generation in [g for g in self._outputs if g < oldest]:
            del self._outputs[generation]
            self._first = max(self._first, generation + 1)
        wanted = {
            block
            for g in range(max(1, self._newest - WARM_GENERATIONS + 1), self._newest + 1)
            for block in _aligned_blocks(self._begin(g), g)
        }
        self._blocks = {block: segment for block, segment in self._blocks.items() if block in wanted}


def _aligned_blocks(begin: int, end: int) -> Iterator[Block]:
    """(level, number) of the fewest aligned blocks that cover generations [begin, end], in order."""
    at = begin - 1
    while at < end:
        level = (at & -at).bit_length() - 1 if at else end.bit_length()
        while 2**level > end - at:
            level -= 1
        yield level, at >> level
        at += 2**level
