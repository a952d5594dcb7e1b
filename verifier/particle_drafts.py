"""The drafting side of SMC speculative decoding: blocks of tokens for many particles, from one draft model.

Every particle draws from the draft's own law under the request's sampling parameters, cut to `support` tokens and made of
integer weights (docs/decisions/0003-draft-laws.md), so the q that weighs a block is the q that it was drawn from. All
particles ride in one pass a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from contracts.draft_law import DraftLaw
from contracts.drawing import DraftCoins, draw_independent
from contracts.errors import InvalidArgument
from contracts.sampling import SamplingPolicy
from models.backend import Backend, KVSlot, RowBlock
from models.laws import LawProcessor

Ints = npt.NDArray[np.int64]
_NONE: Ints = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Block:
    """A particle's drafted tokens in order, and the law that each was drawn from."""

    tokens: tuple[int, ...]
    laws: tuple[DraftLaw, ...]


class BlockDrafts(Protocol):
    """A maker of blocks. Particles are numbered; a particle's prefix may be any other one's from call to call."""

    def blocks(self, prefixes: Sequence[tuple[int, Ints, int]], count: int) -> list[Block]:
        """`count` tokens after each of `prefixes`: (particle, int64 [L >= 1], seed of its coins).

        Tokens after an end of sequence may be drafted; they are not published, and weigh nothing.
        """
        ...


class ModelDrafts:
    """Blocks from a draft model, a KV slot of `capacity` rows for each particle.

    A particle's rows follow its prefix: the longest common part is kept, the rest computed anew. prompt_len: where the
    output starts, for penalties. Raises InvalidArgument for a draft of another vocabulary, ResourceExhausted where the
    backend has no rows left.
    """

    def __init__(
        self,
        backend: Backend,
        policy: SamplingPolicy,
        *,
        particles: int,
        capacity: int,
        prompt_len: int,
        vocab_size: int,
        eos_ids: Sequence[int] = (),
        support: int = 64,
    ) -> None:
        if backend.info.vocab_size != vocab_size:
            raise InvalidArgument("draft.vocab_size", f"{backend.info.vocab_size}, the target's is {vocab_size}")
        self._backend = backend
        self._policy = policy
        self._prompt_len = prompt_len
        self._eos_ids = tuple(eos_ids)
        self._support = support
        self._slots: list[KVSlot] = [backend.allocate(capacity) for _ in range(particles)]
        self._known: list[Ints] = [_NONE] * particles

    def blocks(self, prefixes: Sequence[tuple[int, Ints, int]], count: int) -> list[Block]:
        grown = [prefix for _, prefix, _ in prefixes]
        tokens: list[list[int]] = [[] for _ in prefixes]
        laws: list[list[DraftLaw]] = [[] for _ in prefixes]
        coins = [DraftCoins(seed, len(prefix), "smc") for _, prefix, seed in prefixes]
        processors = [self._processor() for _ in prefixes]
        for draw in range(count):
            logits = self._follow([(n, prefix) for (n, _, _), prefix in zip(prefixes, grown, strict=True)])
            for i, row in enumerate(logits):
                here = processors[i].laws(row, prefix=grown[i], token_ids=_NONE, parents=_NONE)
                law = here.draft_law(-1, support=self._support)
                (token,) = draw_independent(law, 1, coins[i], first_draw=draw)
                tokens[i].append(token)
                laws[i].append(law)
                grown[i] = np.append(grown[i], token)
        return [Block(tuple(drawn), tuple(drawn_from)) for drawn, drawn_from in zip(tokens, laws, strict=True)]

    def release(self) -> None:
        """Gives the slots back."""
        for slot in self._slots:
            self._backend.release(slot)

    def _processor(self) -> LawProcessor:
        return LawProcessor(
            self._policy,
            vocab_size=self._backend.info.vocab_size,
            prompt_len=self._prompt_len,
            eos_ids=self._eos_ids,
        )

    def _follow(self, prefixes: Sequence[tuple[int, Ints]]) -> list[Tensor]:
        """Logits float32 [1, V] after each prefix, all in one pass."""
        blocks = []
        for n, prefix in prefixes:
            slot, known = self._slots[n], self._known[n]
            shorter = min(len(known), len(prefix) - 1)
            differs = np.flatnonzero(known[:shorter] != prefix[:shorter])
            kept = int(differs[0]) if len(differs) else shorter
            self._backend.truncate(slot, kept)
            rows = np.arange(len(prefix) - kept)
            blocks.append(RowBlock(slot, prefix[kept:], kept + rows, rows - 1, rows[-1:]))
        logits = self._backend.forward(blocks).logits
        for (n, prefix), block in zip(prefixes, blocks, strict=True):
            self._backend.commit(block.slot, range(len(block.token_ids)))
            self._known[n] = prefix
        return list(logits)
