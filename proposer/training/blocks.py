"""A data set's unit of work: 64 prompts in their order, one shard. Who generates it, and beside what, changes no byte of it.

A block's shard holds its conversations in the prompts' order, whichever ended first, so one process, an interrupted one and
many machines write the same files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from models.backend import Backend
from proposer.training.generate import Conversation, Encoded, generate

BLOCK_PROMPTS = 64


@dataclass(frozen=True)
class Block:
    """number: of its shard. prompts: at least one."""

    number: int
    prompts: tuple[Encoded, ...]


@dataclass(frozen=True)
class Decoding:
    """What a conversation follows from beside its prompt, and how many run side by side (`width`, which changes none)."""

    taps: tuple[str, ...]
    eos_ids: tuple[int, ...]
    seed: int
    width: int


Finished = Callable[[Conversation], None]
# Turns blocks into their conversations, each in its block's order; blocks may come back in any order. `finished` is told of
# each conversation as early as it is known.
Produce = Callable[[Iterable[Block], Finished], Iterator[tuple[Block, list[Conversation]]]]


def in_process(backend: Backend, decoding: Decoding) -> Produce:
    """All blocks by one backend, side by side across their ends."""

    def produce(blocks: Iterable[Block], finished: Finished) -> Iterator[tuple[Block, list[Conversation]]]:
        open_blocks: list[Block] = []
        done: dict[str, Conversation] = {}

        def prompts() -> Iterator[Encoded]:
            for block in blocks:
                open_blocks.append(block)
                yield from block.prompts

        for conversation in conversations(backend, prompts(), decoding):
            done[conversation.name] = conversation
            finished(conversation)
            for block in [one for one in open_blocks if all(each.prompt.name in done for each in one.prompts)]:
                open_blocks.remove(block)
                yield block, [done.pop(each.prompt.name) for each in block.prompts]

    return produce


def conversations(backend: Backend, prompts: Iterable[Encoded], decoding: Decoding) -> Iterator[Conversation]:
    """As they end."""
    return generate(
        backend,
        prompts,
        taps=decoding.taps,
        eos_ids=decoding.eos_ids,
        width=decoding.width,
        seed=decoding.seed,
    )


def blocks_of(prompts: Sequence[Encoded], first: int) -> list[Block]:
    """Blocks numbered from `first` on."""
    starts = range(0, len(prompts), BLOCK_PROMPTS)
    return [Block(first + number, tuple(prompts[start : start + BLOCK_PROMPTS])) for number, start in enumerate(starts)]
