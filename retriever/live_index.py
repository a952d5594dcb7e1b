"""One scope's published outputs, searchable by generation.

A generation is a fixed set of outputs: a function of the stream's entries up to one of them, whoever replays them, and it
is named by number and digest of that history (`live_store.LivePoint`). It is the last `max_entries` of them, and none that
a *floor* entry (left by compaction) among them has retired. Two retrievers that both still have a generation answer alike;
one that has lost an entry of it says so instead.

Entries are indexed in blocks that cover aligned ranges of sequence numbers, [j 2^k + 1, (j + 1) 2^k]: any range is at most
2 log2(n) blocks, and one more entry builds few new ones. Counts add up over segments, so the cut into blocks cannot be
seen in an answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from contracts.errors import DataLoss
from retriever.live_store import NOWHERE, LiveEntry, LivePoint, decode_entry
from retriever.segment import Segment, segment_from_documents

# Blocks of this many of the newest generations stay built; those of older ones are built again when asked for.
WARM_GENERATIONS = 16

# (level, number) of an aligned range of sequence numbers.
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
        self._head = NOWHERE
        self._shown = NOWHERE
        self._sequences: dict[int, int] = {}
        self._blocks: dict[Block, Segment] = {}
        self._unreadable = 0

    @property
    def newest(self) -> LivePoint:
        """Where the newest indexed entry stands; NOWHERE before the first."""
        return self._shown

    @property
    def head(self) -> LivePoint:
        """Where the newest entry that has been taken stands."""
        return self._head

    def continued_by(self, entry: LiveEntry) -> bool:
        """Whether the entry may follow what was taken: False where the stream was replaced by another history."""
        last = self._head
        told = last is not NOWHERE and entry.sequence == last.sequence + 1 and entry.before is not None
        return not told or entry.before == last.chain

    def sequence_of(self, generation: int) -> int | None:
        """The sequence number of the entry that the generation ends with, None where it is not here."""
        return self._sequences.get(generation)

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
            if entry.sequence <= self._head.sequence:
                continue
            if entry.sequence != self._head.sequence + 1:
                # The stream no longer has what lies between: nothing older than this entry can be reproduced.
                self._first = entry.sequence
                self._outputs.clear()
                self._blocks.clear()
            self._head = entry.point
            self._sequences[self._head.generation] = entry.sequence
            try:
                content = decode_entry(entry.payload)
            except DataLoss:
                self._unreadable += 1
                content = np.empty(0, np.uint32)
            if isinstance(content, int):
                self._floors[entry.sequence] = content
                content = np.empty(0, np.uint32)
            self._outputs[entry.sequence] = content

    def missing(self) -> dict[Block, list[NDArray[np.uint32]]]:
        """The outputs of each block that the newest entry's generation needs and that is not built."""
        newest = self._head.sequence
        if self._begin(newest) < self._first:
            return {}
        blocks = _aligned_blocks(self._begin(newest), newest)
        return {block: self._documents(block) for block in blocks if block not in self._blocks}

    def install(self, built: Mapping[Block, Segment]) -> None:
        """Take in the missing blocks and show the newest entry's generation."""
        self._blocks.update(built)
        self._shown = self._head
        self._forget()

    def segments(self, generation: int) -> tuple[Segment, ...] | None:
        """What the generation holds, or None where it cannot be reproduced here (too old, too new, entries lost)."""
        sequence = self._reproducible(generation)
        if sequence is None:
            return None
        return tuple(self._block(*block) for block in _aligned_blocks(self._begin(sequence), sequence))

    def outputs(self, generation: int) -> list[NDArray[np.uint32]] | None:
        """The generation's non-empty outputs in stream order, or None as for `segments`."""
        sequence = self._reproducible(generation)
        if sequence is None:
            return None
        held = (self._outputs[at] for at in range(self._begin(sequence), sequence + 1))
        return [tokens for tokens in held if tokens.size]

    def _reproducible(self, generation: int) -> int | None:
        """The generation's sequence number where it can be reproduced here."""
        sequence, newest = self._sequences.get(generation), self._shown.sequence
        if sequence is None or not max(0, newest - self._keep) < sequence <= newest:
            return None
        return sequence if self._begin(sequence) >= self._first else None

    def _begin(self, sequence: int) -> int:
        floor = max((floor for at, floor in self._floors.items() if at <= sequence), default=0)
        return max(sequence - self._max_entries, floor) + 1

    def _block(self, level: int, number: int) -> Segment:
        if (level, number) not in self._blocks:
            self._blocks[level, number] = segment_from_documents(self._documents((level, number)))
        return self._blocks[level, number]

    def _documents(self, block: Block) -> list[NDArray[np.uint32]]:
        level, number = block
        first = number * 2**level + 1
        return [self._outputs[at] for at in range(first, first + 2**level)]

    def _forget(self) -> None:
        newest = self._shown.sequence
        oldest = self._begin(max(1, newest - self._keep + 1))
        for sequence in [at for at in self._outputs if at < oldest]:
            del self._outputs[sequence]
            self._first = max(self._first, sequence + 1)
        self._sequences = {name: at for name, at in self._sequences.items() if at > newest - self._keep}
        wanted = {
            block
            for at in range(max(1, newest - WARM_GENERATIONS + 1), newest + 1)
            for block in _aligned_blocks(self._begin(at), at)
        }
        self._blocks = {block: segment for block, segment in self._blocks.items() if block in wanted}


def _aligned_blocks(begin: int, end: int) -> Iterator[Block]:
    """(level, number) of the fewest aligned blocks that cover sequence numbers [begin, end], in order."""
    at = begin - 1
    while at < end:
        level = (at & -at).bit_length() - 1 if at else end.bit_length()
        while 2**level > end - at:
            level -= 1
        yield level, at >> level
        at += 2**level
