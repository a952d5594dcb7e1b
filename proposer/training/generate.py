"""The target writes its own training data: many conversations at once, each independent of its neighbours.

A pass carries one row of every conversation under way and the prompt rows of those that begin. The backend gives a row what
it would get alone, and a sampled token's noise is keyed by (seed, conversation, position), so what a conversation becomes
does not depend on which others run beside it: an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from models.backend import Backend, KVSlot, RowBlock
from proposer.training.seed_prompts import SeedPrompt

Int64Array = npt.NDArray[np.int64]
HalfArray = npt.NDArray[np.float16]

_PREFILL_ROWS = 192


@dataclass(frozen=True)
class Encoded:
    """A seed prompt with its token ids in the chat template."""

    prompt: SeedPrompt
    token_ids: Sequence[int]


@dataclass(frozen=True)
class Conversation:
    """tokens int32 [N]: prompt and answer, end of sequence included where it came. answer_start: index of the answer's
    first token. hidden: per tap float16 [N - 1, H], row i of token i (the last token was never an input)."""

    name: str
    kind: str
    tokens: npt.NDArray[np.int32]
    answer_start: int
    hidden: dict[str, HalfArray]


class _Running:
    def __init__(self, encoded: Encoded, slot: KVSlot, seed: int) -> None:
        self.encoded = encoded
        self.slot = slot
        self.tokens = list(encoded.token_ids)
        self.rows: dict[str, list[HalfArray]] = {}
        self._key = (seed, zlib.crc32(encoded.prompt.name.encode()))

    def next_block(self) -> RowBlock:
        start = self.slot.length
        stop = min(start + _PREFILL_ROWS, len(self.tokens))
        rows = np.arange(stop - start, dtype=np.int64)
        wanted = rows[-1:] if stop == len(self.tokens) else rows[:0]
        ids = np.array(self.tokens[start:stop], np.int64)
        return RowBlock(self.slot, ids, start + rows, rows - 1, wanted)

    def take(self, logits: Tensor, hidden: dict[str, Tensor], eos_ids: Sequence[int]) -> bool:
        """Append the next token where the whole text has been run; True once the conversation is over."""
        for tap, rows in hidden.items():
            self.rows.setdefault(tap, []).append(rows.numpy().astype(np.float16))
        if not len(logits):
            return False
        scores = logits[0].numpy()
        if self.encoded.prompt.temperature > 0:
            noise = np.random.default_rng((*self._key, len(self.tokens))).gumbel(size=len(scores))
            scores = scores / self.encoded.prompt.temperature + noise
        token = int(scores.argmax())
        self.tokens.append(token)
        return token in eos_ids or len(self.tokens) - len(self.encoded.token_ids) >= self.encoded.prompt.max_new

    def finished(self) -> Conversation:
        hidden = {tap: np.concatenate(rows) for tap, rows in self.rows.items()}
        prompt = self.encoded.prompt
        tokens = np.array(self.tokens, np.int32)
        return Conversation(prompt.name, prompt.kind, tokens, len(self.encoded.token_ids), hidden)


def generate(
    backend: Backend,
    prompts: Iterable[Encoded],
    *,
    taps: Sequence[str],
    eos_ids: Sequence[int],
    width: int = 32,
    seed: int = 0,
) -> Iterator[Conversation]:
    """Conversations as they end, `width` at a time. Raises ResourceExhausted when the backend has no rows for `width`."""
    waiting = iter(prompts)
    running: list[_Running] = []
    exhausted = False
    while True:
        while len(running) < width and not exhausted:
            encoded = next(waiting, None)
            if encoded is None:
                exhausted = True
                break
            slot = backend.allocate(len(encoded.token_ids) + encoded.prompt.max_new)
            running.append(_Running(encoded, slot, seed))
        if not running:
            return
        blocks, places = _blocks(running)
        result = backend.forward(blocks, taps=taps)
        over: list[_Running] = []
        for index, place in enumerate(places):
            one = running[place]
            backend.commit(one.slot, range(len(blocks[index].token_ids)))
            hidden = {tap: rows[index] for tap, rows in result.hidden.items()}
            if one.take(result.logits[index], hidden, eos_ids):
                over.append(one)
        for one in over:
            backend.release(one.slot)
            running.remove(one)
            yield one.finished()


def _blocks(running: Sequence[_Running]) -> tuple[list[RowBlock], list[int]]:
    """One block a conversation, but at most two with prompt rows, which would otherwise make a pass of thousands."""
    blocks: list[RowBlock] = []
    places: list[int] = []
    prefills = 0
    for place, one in enumerate(running):
        block = one.next_block()
        if len(block.token_ids) > 1:
            prefills += 1
            if prefills > 2:
                continue
        blocks.append(block)
        places.append(place)
    return blocks, places
