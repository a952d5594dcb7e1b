"""A Medusa-2 package beside heads of the base: its own target, its texts, and how far that target is from the base.

Its heads read a changed backbone, so they draft along what that backbone writes for the same prompts, and a token that is
accepted there is one of another model. What the change costs stands beside it: the same answers of the base under both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.head_table import Drafters, Row
from benchmarks.head_trajectories import Trajectory
from models.backend import Backend, RowBlock
from models.load import load_backend
from proposer.heads.families import LoadedHead, load_head
from proposer.heads.package import MANIFEST, read_manifest
from proposer.training.run_medusa2 import HEAD, TARGET, bind

_CHUNK = 128


@dataclass(frozen=True)
class AdaptedTarget:
    """target: the base with the package's adapter merged in, head: bound to it."""

    name: str
    target: Backend
    head: LoadedHead

    @classmethod
    def of(
        cls, package: Path, checkpoint: Path, cache: Path, *, tokenizer_digest: str, eos_ids: Sequence[int]
    ) -> AdaptedTarget:
        """Merged into a folder of `cache` where that was not done yet, and loaded strictly. Errors as `bind` and
        `load_head`."""
        out = cache / f"benchmark-medusa2-{read_manifest(package).weights_sha256[:8]}"
        if not (out / HEAD / MANIFEST).is_file():
            bind(package, checkpoint, out, eos_ids=eos_ids)
        head = load_head(out / HEAD, out / TARGET, tokenizer_digest=tokenizer_digest, eos_ids=eos_ids)
        return cls(package.name, load_backend(out / TARGET, dtype="bfloat16", kv_budget_tokens=32768), head)

    def rows(self, texts: Sequence[Trajectory], nodes: Mapping[str, int]) -> Iterator[Row]:
        """Its head, and prompt lookup, along this target's texts."""
        drafters = Drafters.of({self.name: self.head}, {}, [], nodes)
        for row in drafters.rows(texts, self.target.info.vocab_size):
            own = row.name == self.name
            note = row.note.replace("(medusa:", "(medusa2, its own target:") if own else "(along its texts)"
            yield replace(row, name=self.name if own else f"{self.name}_{row.name}", note=note)


@dataclass(frozen=True)
class Distance:
    """Of two targets over the base's answers. same_choice: share of positions where their likeliest tokens are the same;
    base_perplexity, perplexity: of the answers under the base and the other. Where the base sampled the answers at
    temperature 1, the logarithm of the perplexities' ratio is the mean KL divergence from the base's law."""

    same_choice: float
    base_perplexity: float
    perplexity: float

    @classmethod
    def over(cls, base: Backend, other: Backend, answers: Sequence[Trajectory]) -> Distance:
        same = count = 0
        losses = [0.0, 0.0]
        for answer in answers:
            tokens = answer.tokens[answer.answer_start :]
            both = [_answer_logits(backend, answer) for backend in (base, other)]
            same += int((both[0].argmax(dim=1) == both[1].argmax(dim=1)).sum())
            count += len(tokens)
            for index, logits in enumerate(both):
                losses[index] += float(torch.nn.functional.cross_entropy(logits, tokens, reduction="sum"))
        return cls(same / count, math.exp(losses[0] / count), math.exp(losses[1] / count))


def _answer_logits(backend: Backend, answer: Trajectory) -> Tensor:
    """float32 [answer tokens, V]: what predicts each of them."""
    tokens, first = answer.tokens.numpy(), answer.answer_start - 1
    slot = backend.allocate(len(tokens) + _CHUNK)
    parts = []
    for start in range(0, len(tokens) - 1, _CHUNK):
        rows = np.arange(min(_CHUNK, len(tokens) - 1 - start))
        wanted = rows[start + rows >= first]
        block = RowBlock(slot, tokens[start + rows], start + rows, rows - 1, wanted)
        parts.append(backend.forward([block]).logits[0].clone())
        backend.commit(slot, rows.tolist())
    backend.release(slot)
    return torch.cat(parts)
