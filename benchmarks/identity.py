"""Identity with Transformers' own greedy output, and the judgement of partings (docs/decisions, evidence).

A parting between two numerically different runs is excused only if, where they part, the gap between the two tokens'
logits is at most twice the largest difference between the two runs' logits there. Excuses are counted and reported.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

from benchmarks.peers.client import Peer
from models.backend import Backend, RowBlock
from models.checkpoint import digest


class References:
    """Transformers' greedy fp32 tokens by prompt, kept in a file so that a run does not compute them twice."""

    def __init__(self, checkpoint: Path, folder: Path, max_new_tokens: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._max_new_tokens = max_new_tokens
        name = f"{digest(checkpoint)[:16]}-transformers-{version('transformers')}-{max_new_tokens}.json"
        self._path = folder / name
        self._known: dict[str, list[int]] = json.loads(self._path.read_text()) if self._path.exists() else {}

    def tokens(self, peer: Callable[[], Peer], prompt_ids: Sequence[int]) -> tuple[int, ...]:
        """The reference for one prompt; `peer` is called only if it must be computed."""
        key = hashlib.sha256(np.array(prompt_ids, dtype="<u4").tobytes()).hexdigest()
        if key not in self._known:
            self._known[key] = peer().generate(prompt_ids, self._max_new_tokens)["tokens"]
            self._path.write_text(json.dumps(self._known))
        return tuple(self._known[key])


@dataclass(frozen=True)
class Parting:
    """Where two outputs part: index of the first differing token, the gap that decided it, the largest logit difference."""

    index: int
    gap: float
    difference: float

    @property
    def excused(self) -> bool:
        return self.gap <= 2 * self.difference


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first position where the outputs differ, an ended output counting as a difference."""
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return None if len(a) == len(b) else min(len(a), len(b))


def last_logits(backend: Backend, token_ids: Sequence[int]) -> np.ndarray:
    """float32 [V]: our logits after the last of `token_ids`."""
    slot = backend.allocate(len(token_ids))
    try:
        ids = np.array(token_ids, dtype=np.int64)
        order = np.arange(len(ids), dtype=np.int64)
        block = RowBlock(slot, ids, order, order - 1, np.array([len(ids) - 1], dtype=np.int64))
        logits: np.ndarray = backend.forward([block]).logits[0][0].float().numpy()
        return logits
    finally:
        backend.release(slot)


def judge(
    backend: Backend, peer: Peer, prompt_ids: Sequence[int], ours: Sequence[int], theirs: Sequence[int]
) -> Parting | None:
    """None where the outputs are identical. A missing token (one run ended) counts as the end-of-sequence decision."""
    index = first_difference(ours, theirs)
    if index is None:
        return None
    prefix = [*prompt_ids, *theirs[:index]]
    reference = np.array(peer.ask({"logits_for": prefix})["logits"], dtype=np.float32)
    difference = float(np.abs(reference - last_logits(backend, prefix)).max())
    if index >= min(len(ours), len(theirs)):
        return Parting(index, float("inf"), difference)
    return Parting(index, abs(float(reference[theirs[index]] - reference[ours[index]])), difference)
