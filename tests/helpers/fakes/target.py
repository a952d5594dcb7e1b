"""The toy target and its tokenizer: a small byte vocabulary whose law is a pure function of the prefix."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from orchestrator.events import Chunk, Final, GenerateEvent

BOS, EOS, VOCAB = 256, 257, 258

Logits = Callable[[Sequence[int]], npt.NDArray[np.float64]]


class FakeTokenizer:
    """One token per UTF-8 byte, and two special tokens that have no text."""

    digest = "byte-tokenizer"
    vocab_size = VOCAB

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        return [BOS, *self.encode("".join(f"{m['role']}: {m['content']}\n" for m in messages) + "assistant: ")]

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(token for token in token_ids if token < BOS).decode(errors="replace")


def babble(prefix: Sequence[int]) -> npt.NDArray[np.float64]:
    """Logits that repeat themselves: over a few letters, from the last two tokens only."""
    seed = hashlib.sha256(bytes(token % 256 for token in prefix[-2:])).digest()
    logits = np.full(VOCAB, -20.0)
    for rank, byte in enumerate(seed[:6]):
        logits[97 + byte % 12] = 3.0 - 0.7 * rank
    return logits


def reciting(prompt_len: int, text: str | bytes, end: int = EOS) -> Logits:
    """Logits of a target that recites `text` after a prompt of `prompt_len` tokens, then `end`; a wrong prefix shows."""
    script = [*(text.encode() if isinstance(text, str) else text), end]

    def logits(prefix: Sequence[int]) -> npt.NDArray[np.float64]:
        said = list(prefix[prompt_len:])
        out = np.full(VOCAB, -20.0)
        out[script[min(len(said), len(script) - 1)] if said == script[: len(said)] else ord("!")] = 20.0
        return out

    return logits


async def collect(events: AsyncIterator[GenerateEvent]) -> tuple[list[Chunk], Final]:
    """All chunks and the Final of a generation that ends by itself."""
    seen = [event async for event in events]
    final = seen.pop()
    assert isinstance(final, Final)
    return [event for event in seen if isinstance(event, Chunk)], final
